"""The oracle: small checkpoints, their golden results, and measures of an engine against them."""
