"""Data of serving."""
