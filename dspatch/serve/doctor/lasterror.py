"""The last failure that a log shows, whatever it is: the end of a traceback, or a process's own last word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dspatch.serve.doctor import lines
from dspatch.serve.doctor.lines import Block

TRIED = 40  # lines with a word of failure that are looked at, from the end of a block
_WORDS = (
    b"Error",
    b"Exception",
    b"Fatal Python",
    b"terminate called",
    b"Segmentation",
    b" error: ",
    b"Killed",
)
# Not what stands in quotes or backticks: a warning may name an error that did not happen.
_FAILURE = re.compile(
    r"(?<![\w.'\"(`/])(?:\w{1,60}\.){0,6}\w{1,60}(?:Error|Exception)(?:: |\s{0,5}$)"
    r"|terminate called after throwing|Fatal Python error: |Segmentation fault"
    r"|^[\w.-]{1,40}: error: |\bKilled\s{0,5}$"
)
_WARNED = re.compile(r"\b(?:WARNING|WARN|Warning)\b")


@dataclass(frozen=True, kw_only=True)
class Last:
    """The line of a failure: its number and its text."""

    number: int
    text: str


def last_in(block: Block) -> Last | None:
    """The last failure in a block of lines."""
    for start, end in _from_the_end(block.data):
        for text in reversed(lines.parts(block.data[start:end])):
            if _FAILURE.search(text) and not _WARNED.search(text):
                return Last(number=block.first + block.data.count(b"\n", 0, start), text=text)
    return None


def _from_the_end(data: bytes) -> Iterator[tuple[int, int]]:
    """The places of lines that have a word of failure, the last first."""
    end = len(data)
    for _ in range(TRIED):
        at = max(data.rfind(word, 0, end) for word in _WORDS)
        if at < 0:
            return
        start = data.rfind(b"\n", 0, at) + 1
        stop = data.find(b"\n", at)
        yield start, stop if stop >= 0 else len(data)
        end = start
