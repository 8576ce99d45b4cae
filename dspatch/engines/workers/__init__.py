"""Programs that run inside an engine's environment; they never import dspatch."""
