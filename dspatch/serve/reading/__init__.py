"""An engine's Python read for what it would do, never imported or run."""
