"""Pin files: read with errors that say where, written to the same bytes always."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from dspatch import files
from dspatch.errors import PinError
from dspatch.pins import tables
from dspatch.pins.tables import Table
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

Row = TypeVar("Row", Accepted, Bound, Setting)

HEAD = "# Written by `dspatch pin add`; do not edit by hand.\n"
SHA256 = re.compile(r"[0-9a-f]{64}")
FILENAME = re.compile(r"[A-Za-z0-9][\w.+!-]*")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
PIN_KEYS = {"rev", "commit", "requires-python", "source", "base", "build"}
SOURCE_KEYS = {"kind", "commit", "project", "filename", "sha256", "size"}
BASE_KEYS = {
    *("target", "project", "filename", "sha256", "size", "requires-python"),
    *("torch", "platform", "glibc", "glibcxx", "accepted", "bounds", "overrides"),
}
BUILD_KEYS = {"target", "torch", "bounds", "settings"}


def read(path: Path, engine: str) -> tuple[Pin, ...]:
    """The pins of a file, none when it does not exist; raises `PinError` with file and line."""
    if not path.exists():
        return ()
    root = tables.read(path)
    root.only({"pin"})
    pins = tuple(_pin(table, engine) for table in root.tables("pin"))
    for at, pin in enumerate(pins):
        if any(pin.version == other.version for other in pins[:at]):
            raise root.fail(f"{pin.rev} is pinned twice; expected one [[pin]] a revision")
    return pins


def write(path: Path, pins: Iterable[Pin]) -> None:
    """Write the pins, oldest revision first, whole or not at all."""
    ordered = sorted(pins, key=lambda pin: version_key(pin.rev))
    text = "\n".join([HEAD, *(_emit(pin) for pin in ordered)])
    try:
        files.write_atomically(path, text.encode())
    except OSError as error:
        raise PinError(
            f"The pin file {path} cannot be written.",
            why=error.strerror or str(error),
            next="name another folder for your own pins in DSPATCH_PINS",
        ) from error


def version_key(rev: str) -> tuple[int, Version | str, str]:
    """Sorts revisions by version, and those that are no version before them, by name."""
    try:
        return (1, Version(rev), rev)
    except InvalidVersion:
        return (0, rev, rev)


def _pin(table: Table, engine: str) -> Pin:
    table.only(PIN_KEYS)
    return Pin(
        engine=engine,
        rev=table.get("rev", str),
        commit=table.maybe("commit"),
        requires_python=table.maybe("requires-python"),
        sources=tuple(map(_source, table.tables("source"))),
        bases=tuple(map(_base, table.tables("base"))),
        builds=tuple(map(_build, table.tables("build"))),
    )


def _source(table: Table) -> Source:
    table.only(SOURCE_KEYS)
    kind: SourceKind = table.one_of("kind", get_args(SourceKind))
    if kind == "git":
        return Source(kind=kind, commit=table.get("commit", str))
    return Source(kind=kind, **_file(table))


def _base(table: Table) -> Base:
    table.only(BASE_KEYS)
    target: Target = table.one_of("target", get_args(Target))
    return Base(
        target=target,
        requires_python=table.maybe("requires-python"),
        torch=table.maybe("torch"),
        platform=table.get("platform", str),
        glibc=table.maybe("glibc"),
        glibcxx=table.maybe("glibcxx"),
        accepted=_rows(
            table,
            "accepted",
            Accepted,
            "`path`, a `reason`, and perhaps `drop`",
            lambda row: isinstance(row.drop, bool),
        ),
        bounds=_bounds(table, "bounds"),
        overrides=_bounds(table, "overrides"),
        **_file(table),
    )


def _build(table: Table) -> Build:
    table.only(BUILD_KEYS)
    try:
        torch = str(Version(table.get("torch", str)))
    except InvalidVersion:
        raise table.fail("`torch` must be a version", "torch") from None
    return Build(
        target=table.one_of("target", get_args(Target)),
        torch=torch,
        bounds=_bounds(table, "bounds"),
        settings=_rows(
            table,
            "settings",
            Setting,
            "a `variable` in capitals, a `value`, and a `reason`",
            lambda row: VARIABLE.fullmatch(row.variable),
        ),
    )


def _bounds(table: Table, key: str) -> tuple[Bound, ...]:
    expected = "a `requirement` with versions, and a `reason`"
    return _rows(table, key, Bound, expected, lambda row: bounds(row.requirement))


def _rows(
    table: Table, key: str, kind: type[Row], expected: str, right: Callable[[Row], object]
) -> tuple[Row, ...]:
    """The inline tables of a list, each with a reason, and `right`."""
    try:
        rows = tuple(kind(**row) for row in table.data.get(key, []))
        if all(_told(row) and right(row) for row in rows):
            return rows
    except TypeError:
        pass  # no list, or one of something else than tables with these keys
    raise table.fail(f"`{key}` must hold tables of {expected}", key)


def _told(row: Accepted | Bound | Setting) -> bool:
    """Whether a row has texts, but for a flag, and its reason says something."""
    texts = (value for name, value in vars(row).items() if name != "drop")
    return all(isinstance(text, str) for text in texts) and bool(row.reason.strip())


def bounds(requirement: str) -> bool:
    """Whether a requirement can narrow or replace another: a project and versions, nothing else."""
    try:
        found = Requirement(requirement)
    except InvalidRequirement:
        return False
    return bool(found.specifier) and not (found.marker or found.extras or found.url)


def _file(table: Table) -> dict[str, Any]:
    size = table.get("size", int)
    if size < 0:
        raise table.fail(f"`size` is {size}; expected a number of bytes", "size")
    return {
        "project": table.get("project", str),
        # A name that could climb out of the cache's folder is none.
        "filename": table.matching("filename", FILENAME, "a plain file name"),
        "sha256": table.matching("sha256", SHA256, "64 hexadecimal digits in lower case"),
        "size": size,
    }


def _emit(pin: Pin) -> str:
    head = {"rev": pin.rev, "commit": pin.commit, "requires-python": pin.requires_python}
    blocks = [_block("[[pin]]", head)]
    blocks += [_block("[[pin.source]]", _source_row(source)) for source in pin.sources]
    blocks += [_block("[[pin.base]]", _base_row(base)) for base in pin.bases]
    blocks += [_block("[[pin.build]]", _build_row(build)) for build in pin.builds]
    return "\n".join(blocks)


def _block(header: str, row: Mapping[str, Any]) -> str:
    lines = [
        f"{key} = {_value(value)}" for key, value in row.items() if value not in (None, "", ())
    ]
    return "\n".join([header, *lines, ""])


def _source_row(source: Source) -> dict[str, Any]:
    if source.kind == "git":
        return {"kind": "git", "commit": source.commit}
    return {"kind": source.kind, **_file_row(source)}


def _base_row(base: Base) -> dict[str, Any]:
    return {
        "target": base.target,
        **_file_row(base),
        "requires-python": base.requires_python,
        "torch": base.torch,
        "platform": base.platform,
        "glibc": base.glibc,
        "glibcxx": base.glibcxx,
        "accepted": base.accepted,
        "bounds": base.bounds,
        "overrides": base.overrides,
    }


def _build_row(build: Build) -> dict[str, Any]:
    return {
        "target": build.target,
        "torch": build.torch,
        "bounds": build.bounds,
        "settings": build.settings,
    }


def _file_row(file: Source | Base) -> dict[str, Any]:
    return {key: getattr(file, key) for key in ("project", "filename", "sha256", "size")}


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "\n".join(["[", *(f"    {_inline(each)}," for each in value), "]"])
    # A JSON string is a TOML string, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(row: Accepted | Bound | Setting) -> str:
    told = {key: value for key, value in asdict(row).items() if value is not False}
    return f"{{ {', '.join(f'{key} = {_value(value)}' for key, value in told.items())} }}"
