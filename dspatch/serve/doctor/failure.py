"""The first and the last failure that a log shows, whatever they are: ends of tracebacks, a process's last words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The line of a failure: its number and its text."""

    number: int
    text: str


def first_in(block: Block) -> Failure | None:
    """The first failure in a block of lines."""
    return next(_failures(block, _from_the_start(block.data)), None)


def last_in(block: Block) -> Failure | None:
    """The last failure in a block of lines."""
    return next(_failures(block, _from_the_end(block.data)), None)


def _failures(block: Block, places: Iterator[tuple[int, int]]) -> Iterator[Failure]:
    for start, end in places:
        for text in lines.parts(block.data[start:end]):
            if _FAILURE.search(text) and not _WARNED.search(text):
                yield Failure(number=block.first + block.data.count(b"\n", 0, start), text=text)


def _from_the_start(data: bytes) -> Iterator[tuple[int, int]]:
    """The places of lines that have a word of failure, in order."""
    at = {word: found for word in _WORDS if (found := data.find(word)) >= 0}
    for _ in range(TRIED):
        if not at:
            return
        start, end = _line(data, min(at.values()))
        yield start, end
        for word in [each for each, place in at.items() if place < end]:
            at[word] = data.find(word, end)
            if at[word] < 0:
                del at[word]


def _from_the_end(data: bytes) -> Iterator[tuple[int, int]]:
    """The places of lines that have a word of failure, the last first."""
    at = {word: found for word in _WORDS if (found := data.rfind(word)) >= 0}
    for _ in range(TRIED):
        if not at:
            return
        start, end = _line(data, max(at.values()))
        yield start, end
        for word in [each for each, place in at.items() if place >= start]:
            at[word] = data.rfind(word, 0, start)
            if at[word] < 0:
                del at[word]


def _line(data: bytes, at: int) -> tuple[int, int]:
    start, stop = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    return start, stop if stop >= 0 else len(data)
