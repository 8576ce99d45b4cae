"""Runs the official client and schemathesis against a server."""

# What is asked with the official client, and how many requests each takes.
OFFICIAL = {"answers": 3, "tools": 2, "types": 3, "errors": 3}
