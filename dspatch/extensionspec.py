"""`[[extension]]` of a patch.toml: a shared object of our own, from which sources and how it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from packaging.version import InvalidVersion, Version

from dspatch.tomlfile import TomlFile

KEYS = ("path", "compiler", "flags", "libraries", "units")
_UNIT_KEYS = ("source", "flags", "machines")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One run of the compiler: a source of the patched tree, with flags of its own.

    `machines` are those that it is compiled for, as the kernel names them; none named: all.
    """

    source: str
    flags: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A shared object that a patch adds to the wheel; `path` is its place there.

    `compiler` is the oldest g++ that compiles it. The sources are rendered by the same patch, and
    may include what lies beside them.
    """

    path: str
    compiler: Version
    units: tuple[Unit, ...]
    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def folders(self) -> frozenset[str]:
        """The folders that its sources lie in, which are all its own."""
        return frozenset(str(PurePosixPath(unit.source).parent) for unit in self.units)

    def moved(self, to: Callable[[str], str]) -> Extension:
        """The extension with other paths."""
        units = tuple(replace(unit, source=to(unit.source)) for unit in self.units)
        return replace(self, path=to(self.path), units=units)

    def owns(self, path: str) -> bool:
        """Whether a file of the tree is one of its sources, or lies beside them."""
        return str(PurePosixPath(path).parent) in self.folders


def read(source: TomlFile, table: dict[str, Any]) -> tuple[Extension, ...]:
    """The extensions that a patch declares; raises the file's error, with its line."""
    rows = source.tables(table, "extension", KEYS)
    return tuple(_extension(source, row) for row in rows)


def _extension(source: TomlFile, row: dict[str, Any]) -> Extension:
    path = _inside(source, row, "path")
    if not path.endswith(".so"):
        raise source.fail("`path` must end in .so", key="path", within="extension")
    stated = source.get(row, "compiler", str, within="extension")
    try:
        compiler = Version(stated)
    except InvalidVersion:
        raise source.fail(
            f"`compiler` must be a version of g++, not {stated!r}",
            key="compiler", within="extension",
        ) from None  # fmt: skip
    units: list[dict[str, Any]] = source.get(row, "units", list, within="extension")
    if not units or not all(isinstance(unit, dict) for unit in units):
        raise source.fail(
            '`units` must be tables: [{ source = "…" }]', key="units", within="extension"
        )
    return Extension(
        path=path,
        compiler=compiler,
        units=tuple(_unit(source, unit) for unit in units),
        flags=source.strings(row, "flags", within="extension"),
        libraries=source.strings(row, "libraries", within="extension"),
    )


def _unit(source: TomlFile, row: dict[str, Any]) -> Unit:
    source.check_keys(row, _UNIT_KEYS, within="extension")
    return Unit(
        source=_inside(source, row, "source"),
        flags=source.strings(row, "flags", within="extension"),
        machines=source.strings(row, "machines", within="extension"),
    )


def _inside(source: TomlFile, row: dict[str, Any], key: str) -> str:
    value = source.get(row, key, str, within="extension")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise source.fail(
            f"`{key}` must be a path in a folder of the tree, not {value!r}",
            key=key, within="extension",
        )  # fmt: skip
    return value
