"""What is wrong with a series."""
