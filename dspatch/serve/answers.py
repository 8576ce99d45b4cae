"""What to say of names that are gone, were renamed, or never were: written by hand, from `data/answers-*.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from dspatch import tomlfile
from dspatch.errors import PatchFormatError
from dspatch.serve.engines import DATA

Fate = Literal["never", "renamed", "removed"]
_KEYS = ("names", "fate", "instead", "say", "finding")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of some names: `never` there, `renamed` to `instead`, or `removed`; `say` is the advice.

    `instead` are names that exist in releases; `finding` is the finding of `audit` about the same.
    """

    names: tuple[str, ...]
    fate: Fate
    say: str
    instead: tuple[str, ...] = ()
    finding: str = ""


def load(engine: str) -> Mapping[str, Answer]:
    """The answers about an engine's names; none where nothing was written. Raises `PatchFormatError`."""
    path = DATA / f"answers-{engine}.toml"
    return of_file(path) if path.is_file() else {}


@cache
def of_file(path: Path) -> Mapping[str, Answer]:
    """The answers of a file, by name."""
    source = tomlfile.load(path, PatchFormatError)
    source.check_keys(source.data, ("answers",))
    found: dict[str, Answer] = {}
    for table in source.get(source.data, "answers", list):
        one = _answer(source, table)
        for name in one.names:
            if name in found:
                raise source.fail(f"`{name}` is answered twice", key=name)
            found[name] = one
    return found


def _answer(source: tomlfile.TomlFile, table: Mapping[str, Any]) -> Answer:
    source.check_keys(table, _KEYS)
    fate = source.get(table, "fate", str)
    if fate not in get_args(Fate):
        raise source.fail(f"`fate` must be one of {', '.join(get_args(Fate))}", key="fate")
    return Answer(
        names=source.strings(table, "names"),
        fate=fate,  # type: ignore[arg-type]
        say=source.get(table, "say", str),
        instead=source.strings(table, "instead"),
        finding=source.get(table, "finding", str, default=""),
    )
