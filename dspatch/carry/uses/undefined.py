"""Names that a patched file uses and nothing defines any more, though the file as it was defined all of them."""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator

# What every module has.
_GIVEN = frozenset(dir(builtins)) | {"__file__", "__path__", "__builtins__", "__class__"}


def left_undefined(before: bytes | None, after: bytes) -> tuple[tuple[str, str], ...]:
    """The names that a change leaves undefined, each with the function or class that uses it.

    None for a file that is no Python, or takes names from elsewhere by `import *`.
    """
    now = _undefined(after)
    if not now:
        return ()
    was = _undefined(before) if before is not None else frozenset()
    return tuple(sorted(now - was)) if was is not None else ()


def _undefined(source: bytes) -> frozenset[tuple[str, str]] | None:
    try:
        top = symtable.symtable(source.decode(), "file", "exec")
    except (SyntaxError, ValueError):
        return None
    if b"import *" in source:
        return None
    tables = list(_below(top, ""))
    defined = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    defined |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}
    for _, table in tables:
        defined |= {s.get_name() for s in table.get_symbols() if s.is_declared_global()}
    if "__getattr__" in defined:
        return None
    return frozenset(
        (name, where)
        for where, table in [("", top), *tables]
        for symbol in table.get_symbols()
        if symbol.is_global() and symbol.is_referenced()
        # symtable takes the names of a function called `top` for global ones, too.
        if table is top or not symbol.is_local()
        if (name := symbol.get_name()) not in defined and name not in _GIVEN
    )


def _below(table: symtable.SymbolTable, prefix: str) -> Iterator[tuple[str, symtable.SymbolTable]]:
    for child in table.get_children():
        name = f"{prefix}{child.get_name()}"
        yield name, child
        yield from _below(child, f"{name}.")
