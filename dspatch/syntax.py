"""Parse Python one source at a time: CPython 3.11 confuses syntax trees that threads build at once."""

from __future__ import annotations

import ast
import warnings
from threading import Lock

# "AST constructor recursion depth mismatch": the depth is one number for the whole interpreter.
_LOCK = Lock()
# What is raised for a source that is no Python, or is nested too deeply to be read.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(source: str | bytes) -> ast.Module:
    """The syntax tree of a module; raises as `ast.parse` does."""
    with _LOCK, _quiet():
        return ast.parse(source)


def expression(source: str) -> ast.expr:
    """The syntax tree of one expression; raises as `ast.parse` does."""
    with _LOCK, _quiet():
        return ast.parse(source, mode="eval").body


def _quiet() -> warnings.catch_warnings[None]:
    """No warnings: an engine's faults of style are not ours to report. The filters are one for all threads."""
    return warnings.catch_warnings(action="ignore")
