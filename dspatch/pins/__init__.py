"""Pins: one engine revision each, with every source and base wheel of it by hash."""

from __future__ import annotations

from dspatch.pins.types import Accepted, Base, Pin, Source

__all__ = ["Accepted", "Base", "Pin", "Source"]
