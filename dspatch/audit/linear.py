"""Regular expressions that no line can make slow: bounded repeats only, and letters that every match has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

SHORTEST = 5  # letters of a needle
SHARED = "Error"  # what most of what is sought has, and few lines of a log
BOUND = 300  # of one repeat
STEPS = 60_000  # from one place of a line: the product of all repeats
# `"`, `\` and what Go escapes in JSON would not be found in lines that JSON wraps; colours may stand at `:`.
_PLAIN = re.compile(r"[A-Za-z0-9_ .,()\[\]=/*-]+")


def faults(pattern: str, what: str) -> Iterator[str]:
    """Why a regular expression may not be used; nothing when its cost is bounded by a line's length."""
    try:
        tree = _parsed(pattern)
    except re.error as error:
        yield f"{what} is no regular expression: {error}"
        return
    steps = 1
    for low, high, inner in _repeats(tree):
        if high > BOUND:
            yield f"{what} repeats without a bound of at most {BOUND}: write {{{low},{BOUND}}}"
        if any(True for _ in _repeats(inner)):
            yield f"{what} repeats what repeats"
        steps *= max(1, min(int(high), BOUND) - low)
    if steps > STEPS:
        yield f"{what} can take {steps} steps from one place; the repeats' bounds may multiply to {STEPS}"


@cache
def needle(pattern: str) -> str:
    """The longest run of plain letters that every match has; empty when there is none worth it."""
    longest = max(_plain_runs(pattern), key=len, default="")
    return longest if len(longest.strip()) >= SHORTEST else ""


@cache
def gate(pattern: str) -> str:
    """The letters to look for first: shared ones where every match has them, otherwise the needle."""
    return SHARED if any(SHARED in run for run in _plain_runs(pattern)) else needle(pattern)


def _plain_runs(pattern: str) -> list[str]:
    return [part for run in _runs(_parsed(pattern)) for part in _PLAIN.findall(run)]


def _parsed(pattern: str) -> Any:
    return import_module("re._parser").parse(pattern)


def _repeats(tree: Any) -> Iterator[tuple[int, int, Any]]:
    """The repeats in a parsed expression, with what each repeats."""
    for op, argument in tree:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = argument
            if int(high) > 1:
                yield int(low), int(high), inner
            else:
                yield from _repeats(inner)
        elif name == "SUBPATTERN":
            yield from _repeats(argument[-1])
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from _repeats(branch)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from _repeats(argument[1])


def _runs(tree: Any) -> Iterator[str]:
    """The runs of letters that stand in every match; groups are looked into, branches are not."""
    run = ""
    for op, argument in tree:
        if str(op) == "LITERAL":
            run += chr(argument)
            continue
        yield run
        run = ""
        if str(op) == "SUBPATTERN":
            yield from _runs(argument[-1])
    yield run
