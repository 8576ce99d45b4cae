"""What is known to be wrong with engines, as data, and whether a source has it."""
