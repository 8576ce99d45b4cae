"""Find the files and hunks of a diff by its lines, as git does, and pass over a mail's header and message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dspatch.errors import DiffFormatError

NEXT = "make it with `git diff --binary --full-index`, or `git format-patch`"

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_MAIL_HEADER = re.compile(r"From |[!-9;-~]+:(\s|$)|[ \t]")
# The lines that git takes for part of a header when they follow `diff --git`.
_EXTENDED = re.compile(
    r"(old|new|deleted file|new file) mode |(copy|rename) (from|to|old|new) |"
    r"(dis)?similarity index |index |--- |\+\+\+ "
)


@dataclass(frozen=True, kw_only=True)
class HunkLines:
    """A hunk's place, from its header, and its lines as they stand in the diff, with their ends."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file's part of a diff: its text, the lines of its header, its hunks."""

    text: str
    header: tuple[str, ...]
    hunks: tuple[HunkLines, ...]


def parts(diff: str) -> list[Part]:
    """The parts of a diff, whose texts are the diff from where its first file begins.

    Raises `DiffFormatError` with the line.
    """
    lines = diff.splitlines(keepends=True) if _plain_ends(diff) else _split(diff)
    found: list[Part] = []
    number = _behind_message(lines)
    start = None
    while number < len(lines):
        if begins(lines, number):
            if start is not None:
                found.append(_part(lines, start, number))
            start = number
            number += 1 if lines[number].startswith("diff ") else 2
        elif hunk := _HUNK.match(lines[number]):
            if start is None:
                raise _error(number, "a hunk stands before any file")
            number = _hunk_end(lines, number, hunk)
        else:
            number += 1
    if start is not None:
        found.append(_part(lines, start, len(lines)))
    elif diff.strip():
        raise DiffFormatError("the diff cannot be read.", why="it names no file", next=NEXT)
    return found


def _plain_ends(diff: str) -> bool:
    """Whether Python splits the lines where git does; it knows many more line ends than `\\n`."""
    return diff.isascii() and not re.search(r"[\r\v\f\x1c-\x1e]", diff)


def _split(diff: str) -> list[str]:
    lines = [f"{line}\n" for line in diff.split("\n")]
    last = lines.pop().removesuffix("\n")
    return [*lines, last] if last else lines


def begins(lines: Sequence[str], number: int) -> bool:
    """Whether a file's part begins at a line: with git's header, or with the two of a plain diff."""
    line, behind = lines[number], lines[number + 1 : number + 3]
    if line.startswith("diff --git "):
        return bool(behind) and _EXTENDED.match(behind[0]) is not None
    if not line.startswith("--- ") or len(behind) < 2 or _in_git_header(lines, number):
        return False
    return behind[0].startswith("+++ ") and behind[1].startswith("@@ -")


def _in_git_header(lines: Sequence[str], number: int) -> bool:
    while number and _EXTENDED.match(lines[number - 1]) and lines[number - 1][0] not in "+-":
        number -= 1
    return number > 0 and lines[number - 1].startswith("diff --git ")


def _behind_message(lines: Sequence[str]) -> int:
    """The line where git would begin to look for the diff: behind a mail's header and message."""
    blank = next((n for n, line in enumerate(lines) if not line.strip()), 0)
    if not blank or not all(_MAIL_HEADER.match(line) for line in lines[:blank]):
        return 0
    return next((n for n in range(blank, len(lines)) if _breaks(lines[n])), len(lines))


def _breaks(line: str) -> bool:
    """Whether a line of a mail ends its message, by the rule of `git mailinfo`."""
    return re.match(r"diff -|Index: |--- \S|---\s*$", line) is not None


def _hunk_end(lines: Sequence[str], number: int, hunk: re.Match[str]) -> int:
    """The line behind a hunk, which its header's counts decide."""
    old, new = int(hunk[2] or 1), int(hunk[4] or 1)
    at, changes = number + 1, False
    while old > 0 or new > 0:
        if at == len(lines):
            raise _error(number, "the hunk is shorter than its header says")
        kind = lines[at][0]
        if kind not in " \n+-\\" or not lines[at].endswith("\n"):
            raise _error(at, "a line of a hunk was expected, whole")
        old -= kind in " \n-"
        new -= kind in " \n+"
        changes |= kind in "+-"
        at += 1
    if old < 0 or new < 0:
        raise _error(number, "the hunk is longer than its header says")
    if not changes:
        raise _error(number, "the hunk changes nothing, so git takes it for a broken one")
    return at + (at < len(lines) and lines[at].startswith("\\ "))


def _part(lines: Sequence[str], start: int, end: int) -> Part:
    first = next((n for n in range(start, end) if _HUNK.match(lines[n])), end)
    hunks, number = [], first
    while number < end:
        if found := _HUNK.match(lines[number]):
            behind = _hunk_end(lines, number, found)
            hunks.append(_hunk(found, lines[number + 1 : behind]))
            number = behind
        else:
            number += 1
    return Part(
        text="".join(lines[start:end]), header=tuple(lines[start:first]), hunks=tuple(hunks)
    )


def _hunk(header: re.Match[str], lines: Sequence[str]) -> HunkLines:
    return HunkLines(
        old_start=int(header[1]),
        old_count=int(header[2] or 1),
        new_start=int(header[3]),
        new_count=int(header[4] or 1),
        section=header[5].rstrip("\r"),
        lines=tuple(lines),
    )


def _error(number: int, why: str) -> DiffFormatError:
    return DiffFormatError("the diff cannot be read.", why=f"line {number + 1}: {why}", next=NEXT)
