"""What of a change a tree has already."""
