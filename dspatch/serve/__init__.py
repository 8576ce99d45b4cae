"""Serving: what an engine that serves takes and tells."""
