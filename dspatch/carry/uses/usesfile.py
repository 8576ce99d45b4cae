"""`uses.toml` beside a patch: the upstream symbols it uses, as they were on the pin it was written for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """What a patch uses, read from the tree of the pin that it was written for."""

    written_for: str
    uses: tuple[Use, ...]


def write(recorded: Recorded) -> str:
    """The text of the file: a function of its content alone."""
    parts = [_HEAD, f"written-for = {_quoted(recorded.written_for)}\n"]
    for use in recorded.uses:
        parts.append(
            f"\n[[use]]\nsymbol = {_quoted(use.symbol)}\nshape = {_quoted(use.shape)}\n"
            f"ways = {_list(use.ways)}\nwhere = {_list(use.where)}\n"
        )
    return "".join(parts)


def read(folder: Path) -> Recorded | None:
    """What a patch folder has recorded, `None` when it has not. Raises `PatchFormatError`."""
    path = folder / NAME
    if not path.is_file():
        return None
    source = tomlfile.load(path, PatchFormatError)
    source.check_keys(source.data, ("written-for", "use"))
    uses = []
    for item in source.get(source.data, "use", list, default=[]):
        source.check_keys(item, _KEYS, within="use")
        uses.append(
            Use(
                symbol=source.get(item, "symbol", str, within="use"),
                shape=source.get(item, "shape", str, within="use"),
                ways=source.strings(item, "ways", within="use"),
                where=source.strings(item, "where", within="use"),
            )
        )
    written_for = source.get(source.data, "written-for", str)
    return Recorded(written_for=written_for, uses=tuple(uses))


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
