"""The stages as a user runs them on a job: each takes the receipt before it, and leaves its own."""
