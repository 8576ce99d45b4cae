"""The engines that can be pinned: those that ship, in `engines.toml`, and the user's own in a file of that name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from dspatch import paths, tomlfile
from dspatch.errors import PinError, UnknownEngineError
from dspatch.pins import enginetable
from dspatch.pins.enginetable import Engine, StandingRule

__all__ = ["TABLE", "Engine", "StandingRule", "engine", "engines", "own_table"]

TABLE = Path(__file__).with_name("engines.toml")


def engine(name: str) -> Engine:
    """The engine of that name; raises `UnknownEngineError` with the nearest one."""
    known = engines()
    if name in known:
        return known[name]
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    raise UnknownEngineError(
        f"dspatch does not patch an engine named {name!r}.",
        why=f"it knows {', '.join(known)}",
        next=f"did you mean --engine {near[0]}?" if near else f"use --engine {next(iter(known))}",
    )


def engines() -> Mapping[str, Engine]:
    """All engines by name: those that ship in the order of their table, then the user's own.

    Raises `PinError` with file and line.
    """
    shipped, own = _table(TABLE), own_table()
    # A pin that shall ship is added among those that do: both tables are one then.
    if not own.is_file() or own.samefile(TABLE):
        return shipped
    mine = _table(own)
    for name in mine:
        if name in shipped:
            source = tomlfile.load(own, PinError)
            raise source.fail(f"`{name}` ships with dspatch; give yours another name", key=name)
    return {**shipped, **mine}


def own_table() -> Path:
    """Where the user's own engines are told: `engines.toml`, beside the user's pins."""
    return paths.own_pins() / TABLE.name


def _table(path: Path) -> Mapping[str, Engine]:
    state = path.stat()
    return _read(path, (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=8)
def _read(path: Path, state: tuple[int, int]) -> Mapping[str, Engine]:
    return enginetable.read(path)
