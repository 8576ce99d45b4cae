"""Parse Python one source at a time: CPython 3.11 confuses syntax trees that threads build at once."""

from __future__ import annotations

import ast
from threading import Lock

# "AST constructor recursion depth mismatch": the depth is one number for the whole interpreter.
_LOCK = Lock()


def parse(source: str | bytes) -> ast.Module:
    """The syntax tree of a module; raises as `ast.parse` does."""
    with _LOCK:
        return ast.parse(source)


def expression(source: str) -> ast.expr:
    """The syntax tree of one expression; raises as `ast.parse` does."""
    with _LOCK:
        return ast.parse(source, mode="eval").body
