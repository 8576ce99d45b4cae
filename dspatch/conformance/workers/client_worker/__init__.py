"""Runs the official client and schemathesis against a server."""
