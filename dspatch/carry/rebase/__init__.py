"""A series taken to another revision, its conflicts explained and resolved."""
