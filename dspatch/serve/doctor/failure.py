"""The first and the last failure that a log shows, whatever they are: ends of tracebacks, a process's last words."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from dspatch.serve.doctor import lines
from dspatch.serve.doctor.lines import Block

TRIED = 40  # lines with a word of failure that are looked at, from either end of a block
_WORDS = (
    *(b"Error", b"Exception", b"Fatal Python", b"terminate called", b"Segmentation"),
    *(b" error: ", b"Killed"),
)
# Not what stands in quotes or backticks: a warning may name an error that did not happen.
_FAILURE = re.compile(
    r"(?<![\w.'\"(`/])(?:\w{1,60}\.){0,6}\w{1,60}(?:Error|Exception)(?:: |\s{0,5}$)"
    r"|terminate called after throwing|Fatal Python error: |Segmentation fault"
    r"|^[\w.-]{1,40}: error: |\bKilled\s{0,5}$"
)
_WARNED = re.compile(r"\b(?:WARNING|WARN|Warning)\b")
Place = tuple[int, int]  # where a line begins and ends


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The line of a failure: its number and its text."""

    number: int
    text: str


def first_in(block: Block) -> Failure | None:
    """The first failure in a block of lines."""
    return _failure(block, heapq.merge(*(_forward(block.data, word) for word in _WORDS)))


def last_in(block: Block) -> Failure | None:
    """The last failure in a block of lines."""
    places = (_backward(block.data, word) for word in _WORDS)
    return _failure(block, heapq.merge(*places, reverse=True))


def _failure(block: Block, places: Iterable[Place]) -> Failure | None:
    """The failure in the first of so many lines that is one; a line with two words comes twice in a row."""
    for (start, end), _ in islice(groupby(places), TRIED):
        for text in lines.parts(block.data[start:end]):
            if _FAILURE.search(text) and not _WARNED.search(text):
                return Failure(number=block.first + block.data.count(b"\n", 0, start), text=text)
    return None


def _forward(data: bytes, word: bytes) -> Iterator[Place]:
    """The lines that have a word, in order."""
    end = 0
    while (at := data.find(word, end)) >= 0:
        start, end = _line(data, at)
        yield start, end


def _backward(data: bytes, word: bytes) -> Iterator[Place]:
    """The lines that have a word, the last first."""
    start = len(data)
    while (at := data.rfind(word, 0, start)) >= 0:
        start, end = _line(data, at)
        yield start, end


def _line(data: bytes, at: int) -> Place:
    start, stop = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    return start, stop if stop >= 0 else len(data)
