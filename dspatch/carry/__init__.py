"""Carrying patches: in and out of the series, across releases, and what became of them."""
