"""Causes that are no fault of an engine, and how they show in its log, as data: one file a cause."""
