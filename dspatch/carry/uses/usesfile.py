"""`uses.toml` beside a patch: the upstream symbols it uses, as they were on the pins it was written for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspatch import tomlfile
from dspatch.errors import PatchFormatError

NAME = "uses.toml"
_HEAD = "# Written by `dspatch patch lint --write`; do not edit by hand.\n"
_KEYS = ("symbol", "shape", "ways", "where")


@dataclass(frozen=True, kw_only=True)
class Use:
    """One upstream symbol: its shape, how our code uses it, and where."""

    symbol: str
    shape: str
    ways: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a patch uses, read from the tree of the pin that it was written for.

    `others` are records of further pins, for a patch that is other code there; `answers` are then
    those that the traits got on this one which decide what code the patch is (`guard.answer`).
    """

    written_for: str
    uses: tuple[Use, ...]
    answers: tuple[str, ...] = ()
    others: tuple[Recorded, ...] = ()


def write(recorded: Recorded) -> str:
    """The text of the file: a function of its content alone."""
    parts = [_HEAD, *_parts(recorded, "use")]
    for other in recorded.others:
        parts += ["\n[[also]]\n", *_parts(other, "also.use")]
    return "".join(parts)


def _parts(recorded: Recorded, table: str) -> Iterator[str]:
    yield f"written-for = {_quoted(recorded.written_for)}\n"
    if recorded.answers:
        yield f"answers = {_list(recorded.answers)}\n"
    for use in recorded.uses:
        yield (
            f"\n[[{table}]]\nsymbol = {_quoted(use.symbol)}\nshape = {_quoted(use.shape)}\n"
            f"ways = {_list(use.ways)}\nwhere = {_list(use.where)}\n"
        )


def read(folder: Path) -> Recorded | None:
    """What a patch folder has recorded, `None` when it has not. Raises `PatchFormatError`."""
    path = folder / NAME
    if not path.is_file():
        return None
    source = tomlfile.load(path, PatchFormatError)
    source.check_keys(source.data, ("written-for", "answers", "use", "also"))
    others = source.tables(source.data, "also", ("written-for", "answers", "use"))
    return replace(
        _recorded(source, source.data), others=tuple(_recorded(source, each) for each in others)
    )


def _recorded(source: tomlfile.TomlFile, table: Mapping[str, Any]) -> Recorded:
    uses = (
        Use(
            symbol=source.get(item, "symbol", str, within="use"),
            shape=source.get(item, "shape", str, within="use"),
            ways=source.strings(item, "ways", within="use"),
            where=source.strings(item, "where", within="use"),
        )
        for item in source.tables(table, "use", _KEYS)
    )
    return Recorded(
        written_for=source.get(table, "written-for", str),
        uses=tuple(uses),
        answers=source.strings(table, "answers"),
    )


def digest(folders: Iterable[Path]) -> str:
    """sha256 of what patch folders have recorded, in their order."""
    total = hashlib.sha256()
    for folder in folders:
        path = folder / NAME
        data = path.read_bytes() if path.is_file() else b""
        total.update(f"{folder.name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(items: Sequence[str]) -> str:
    if len(items) == 1:
        return f"[{_quoted(items[0])}]"
    return "[\n" + "".join(f"    {_quoted(item)},\n" for item in items) + "]"
