"""One option of a server: its words, what values it takes, and what its source says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dspatch.serve.reading.fields import BOOLEAN
from dspatch.serve.reading.values import Added, External, Lambda, Value

Values = Literal["none", "one", "optional", "any", "some"]
_WITHOUT = frozenset({
    "store_true", "store_false", "store_const", "append_const", "count", "help", "version",
})  # fmt: skip
_BY_NARGS: Mapping[object, Values] = {"?": "optional", "*": "any", "+": "some", None: "one"}
# `argparse.REMAINDER` and `PARSER` are not used by servers.
_DEPRECATED = re.compile(
    r"\[deprecated\]|^\W*deprecated\b|\bis deprecated\b|\bhas been deprecated\b", re.I
)


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option, or a positional argument when no name begins with a dash.

    `values` says how many words follow, `count` how many exactly where it is a number above one.
    `choices` are all that it takes (`None`: anything, or what reading cannot tell), `keys` those of its
    JSON object. `unread`: reading could not tell whether words
    follow. `convert` is what is done to a value before it is held against the choices.
    """

    names: tuple[str, ...]
    values: Values
    count: int = 1
    choices: tuple[str, ...] | None = None
    type: Literal["", "int", "float"] = ""
    optional: bool = False
    keys: tuple[str, ...] | None = None
    deprecated: str = ""
    place: str = ""
    unread: bool = False
    convert: Callable[[Value], Value] | None = None

    @property
    def positional(self) -> bool:
        """Whether it is given by its place and not by a name."""
        return not self.names[0].startswith("-")

    @property
    def name(self) -> str:
        """The name that it is told by: the first long one."""
        return next((each for each in self.names if each.startswith("--")), self.names[0])


def of_added(added: Added, path: str, inverses: Mapping[str, str]) -> Option:
    """The option that a call of `add_argument` makes; `inverses` pairs the beginnings of switches."""
    words = added.keywords
    values, count = _values(words)
    # Where choices are checked after the value was turned into something else, its text may differ.
    choices = words.get("choices")
    kind = words.get("type")
    return Option(
        names=_names(added.names, words.get("action"), inverses),
        values=values,
        count=count,
        choices=_choices(choices, kind),
        type=_type(kind),
        optional=bool(words.get("optional", False)),
        keys=tuple(words["fields"]) if "fields" in words else None,
        deprecated=_deprecated(words),
        place=f"{path}:{added.line}",
        convert=kind.apply if isinstance(kind, Lambda) else None,
        unread=added.unread or bool(words.get("unread", False)),
    )


def _names(names: tuple[str, ...], action: Value, inverses: Mapping[str, str]) -> tuple[str, ...]:
    if action != BOOLEAN:
        return names
    negated = [f"--no-{each[2:]}" for each in names if each.startswith("--")]
    inverse = [
        other + each.removeprefix(begin)
        for each in names
        for begin, other in inverses.items()
        if each.startswith(begin)
    ]
    return (*names, *negated, *inverse)


def _values(words: Mapping[str, Value]) -> tuple[Values, int]:
    action = words.get("action")
    if action == BOOLEAN or (isinstance(action, str) and action in _WITHOUT):
        return "none", 0
    nargs = words.get("nargs")
    if isinstance(nargs, int):
        return "one", nargs
    return _BY_NARGS.get(nargs if isinstance(nargs, str) else None, "one"), 1


def _choices(choices: Value, kind: Value) -> tuple[str, ...] | None:
    if not isinstance(choices, list | tuple) or (kind is not None and not _comparable(kind)):
        return None
    if not all(isinstance(each, str | int | float) or each is None for each in choices):
        return None
    return tuple(str(each) for each in choices)


def _comparable(kind: Value) -> bool:
    return isinstance(kind, Lambda) or (
        isinstance(kind, External) and kind.name in ("str", "int", "float")
    )


def _type(kind: Value) -> Literal["", "int", "float"]:
    if kind == External("int"):
        return "int"
    return "float" if kind == External("float") else ""


def _deprecated(words: Mapping[str, Value]) -> str:
    """What the source says of an option that it calls deprecated, in a few words; else nothing."""
    text = words.get("help")
    said = " ".join(text.split()) if isinstance(text, str) else ""
    if words.get("deprecated") is True:
        return "deprecated"
    return "deprecated" if _DEPRECATED.search(said) else ""
