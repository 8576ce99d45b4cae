"""Cards by name, and in which releases each finding was seen; the latter is generated."""
