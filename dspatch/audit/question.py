"""The questions that a probe can answer, and what is wrong with one that it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from dspatch import astfind

# What is asked of one file; `file` may list several, of which the first that is there counts.
FILE_KEYS = frozenset({
    "file", "symbol", "absent", "contains", "lacks", "parameter", "no-parameter", "entry",
    "no-entry", "regex", "no-regex", "sha256",
})  # fmt: skip
COMBINATIONS = frozenset({"any", "all", "not", "trait", "version"})
_TEXT = FILE_KEYS - {"file"} | {"trait", "version"}


def faults(question: Any, traits: Mapping[str, Any]) -> Iterator[str]:
    """Everything that keeps a question from being answered, in words."""
    if not isinstance(question, dict) or not question:
        yield "a question must be a table that asks for something"
        return
    for key in sorted(question.keys() - FILE_KEYS - COMBINATIONS):
        known = ", ".join(sorted(FILE_KEYS | COMBINATIONS))
        yield f"unknown key `{key}` in a question; expected one of {known}"
    if FILE_KEYS & question.keys() and "file" not in question:
        yield "a question about code needs a `file`"
    yield from _wrong_types(question)
    yield from _inner(question, traits)
    if isinstance(question.get("trait"), str) and question["trait"] not in traits:
        yield f"`{question['trait']}` is no trait of this engine"


def _inner(question: Mapping[str, Any], traits: Mapping[str, Any]) -> Iterator[str]:
    for key in ("any", "all"):
        given = question.get(key)
        if given is not None and (not isinstance(given, list) or not given):
            yield f"`{key}` must be a list of questions"
        for each in given if isinstance(given, list) else ():
            yield from faults(each, traits)
    if "not" in question:
        yield from faults(question["not"], traits)


def _wrong_types(question: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(_TEXT & question.keys()):
        if not isinstance(question[key], str) or not question[key]:
            yield f"`{key}` must be text"
        else:
            yield from _unreadable(key, question[key])
    given = question.get("file", "x")
    paths = given if isinstance(given, list) else [given]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        yield "`file` must be a path, or a list of paths"


def _unreadable(key: str, text: str) -> Iterator[str]:
    try:
        if key in ("contains", "lacks"):
            astfind.pattern(text)
        elif key in ("entry", "no-entry") and "=" in text:
            astfind.pattern(text.partition("=")[2].strip())
        elif key in ("regex", "no-regex"):
            re.compile(text)
        elif key == "version":
            SpecifierSet(text)
        elif key == "sha256" and not re.fullmatch(r"[0-9a-f]{64}", text):
            yield f"`sha256` must be 64 hexadecimal digits, not {text!r}"
    except (SyntaxError, re.error, InvalidSpecifier) as error:
        yield f"`{key}` cannot be read: {error}"
