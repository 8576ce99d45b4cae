"""Pins: one engine revision each, with every source and base wheel of it by hash."""

from __future__ import annotations

from dspatch.pins.engines import Engine, engine, engines
from dspatch.pins.lookup import load, nearest_release, pinned, user_file
from dspatch.pins.types import (
    Accepted,
    Base,
    Bound,
    Build,
    Pin,
    Setting,
    Source,
    SourceKind,
    Target,
)
from dspatch.pins.usable import base_for, misfits

__all__ = [
    "Accepted",
    "Base",
    "Bound",
    "Build",
    "Engine",
    "Pin",
    "Setting",
    "Source",
    "SourceKind",
    "Target",
    "base_for",
    "engine",
    "engines",
    "load",
    "misfits",
    "nearest_release",
    "pinned",
    "user_file",
]
