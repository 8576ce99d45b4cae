"""Published releases read where they lie."""
