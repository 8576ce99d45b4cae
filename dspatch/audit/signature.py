"""A line of a log that shows a cause: its regular expression, a real line, and where that line comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dspatch.audit import linear
from dspatch.tomlfile import TomlFile

Certainty = Literal["certain", "likely", "possible"]
TABLE = "signature"
_KEYS = ("regex", "line", "seen", "certainty", "near", "near-line", "raised")
_RAISED = ("rev", "file", "text")
_SEEN = re.compile(r"https://\S+|run: .+|read: .+")


@dataclass(frozen=True, kw_only=True)
class Raised:
    """Where an engine's source holds the words: `text` stands in a string of `file` at `rev`."""

    rev: str
    file: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How a cause shows in a log.

    `line` is a real one, `seen` says where: an https link, `run: release and what was run`, or
    `read: source` for a line composed of the words in a source. `needle` stands in every line that
    matches, and no form of log escapes its letters. `near` must match what stands shortly before;
    `near_line` is a real line for it.
    """

    regex: re.Pattern[str]
    needle: bytes
    line: str
    seen: str
    certainty: Certainty
    near: re.Pattern[str] | None = None
    near_line: str = ""
    raised: Raised | None = field(default=None, repr=False)


def signatures(source: TomlFile) -> tuple[Signature, ...]:
    """The `[[signature]]` tables of a data file; raises its error for one that is malformed."""
    rows = source.tables(source.data, TABLE, _KEYS)
    return tuple(_signature(source, row) for row in rows)


def _signature(source: TomlFile, row: Mapping[str, Any]) -> Signature:
    text, line, near, near_line = (
        source.get(row, key, str, within=TABLE, default=default)
        for key, default in (("regex", None), ("line", None), ("near", ""), ("near-line", ""))
    )
    for fault in _faults(row, line, near_line):
        raise source.fail(fault, within=TABLE)
    return Signature(
        regex=re.compile(text),
        needle=linear.needle(text).encode(),
        line=line,
        seen=row["seen"],
        certainty=row.get("certainty", "certain"),
        near=re.compile(near) if near else None,
        near_line=near_line,
        raised=Raised(**row["raised"]) if "raised" in row else None,
    )


def _faults(row: Mapping[str, Any], line: str, near_line: str) -> Iterator[str]:
    """What is wrong with one signature."""
    for key, example in (("regex", line), ("near", near_line)):
        yield from linear.faults(row.get(key, ""), f"`{key}` {row.get(key, '')!r}")
        if not re.search(row.get(key, ""), example):
            yield f"`{key}` {row[key]!r} does not match its own line"
    if not linear.needle(row["regex"]):
        yield f"`regex` {row['regex']!r} needs {linear.SHORTEST} plain letters in a row that every match has"
    if not _SEEN.fullmatch(str(row.get("seen"))):
        yield "`seen` must be an https link, or begin with `run: ` or `read: `"
    if row.get("certainty", "certain") not in get_args(Certainty):
        yield f"`certainty` must be one of {', '.join(get_args(Certainty))}"
    if "raised" in row:
        yield from _raised_faults(row["raised"], line)


def _raised_faults(raised: Any, line: str) -> Iterator[str]:
    if not isinstance(raised, dict) or sorted(raised) != sorted(_RAISED):
        yield f"`raised` must have {', '.join(_RAISED)} and nothing else"
    elif str(raised["text"]) not in line:
        yield f"`raised.text` {raised['text']!r} does not stand in the line"
