"""Programs that run inside the oracle's environment; they never import dspatch."""
