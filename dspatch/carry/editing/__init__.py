"""Patch folders changed: from work trees, in one step."""
