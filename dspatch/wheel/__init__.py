"""Overlay wheels: build one from a base wheel and a patched tree, verify it, check a base wheel."""
