"""Where the hunks of a diff stand in a file: their lines before the change, or already those after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dspatch.diffs import Hunk

State = Literal["upstream", "applies", "conflicts"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a file holds of a hunk, and the line (from 1) where it stands."""

    state: State
    line: int | None = None


def lines_of(data: bytes) -> list[str]:
    """The lines of a file with their ends, as a diff has them: only a newline ends one."""
    parts = data.decode("utf-8", "surrogateescape").split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def states(hunks: Sequence[Hunk], lines: Sequence[str]) -> list[Found]:
    """What a file holds of each hunk.

    `upstream`: the lines after the change stand at one place, those before it nowhere. `applies`:
    the lines before the change stand there, where git would take them.
    """
    return [_state(hunk, hunks, lines) for hunk in hunks]


def places(block: Sequence[str], lines: Sequence[str]) -> list[int]:
    """Every line, counted from 0, where a block of lines begins."""
    if not block:
        return []
    width, first = len(block), block[0]
    return [
        at
        for at in range(len(lines) - width + 1)
        if lines[at] == first and list(lines[at : at + width]) == list(block)
    ]


def leading(hunk: Hunk) -> int:
    """How many lines of context stand before a hunk's first change."""
    pairs = zip(hunk.before, hunk.after, strict=False)
    return next((n for n, (old, new) in enumerate(pairs) if old != new), _shorter(hunk))


def trailing(hunk: Hunk) -> int:
    """How many lines of context stand behind a hunk's last change."""
    rest = _shorter(hunk) - leading(hunk)
    pairs = zip(reversed(hunk.before), reversed(hunk.after), strict=False)
    return min(next((n for n, (old, new) in enumerate(pairs) if old != new), rest), rest)


def removed(hunk: Hunk) -> tuple[str, ...]:
    """The lines between the contexts as they were before the change."""
    return hunk.before[leading(hunk) : len(hunk.before) - trailing(hunk)]


def added(hunk: Hunk) -> tuple[str, ...]:
    """The lines between the contexts as the change leaves them."""
    return hunk.after[leading(hunk) : len(hunk.after) - trailing(hunk)]


def _state(hunk: Hunk, hunks: Sequence[Hunk], lines: Sequence[str]) -> Found:
    before = _anchored(hunk, hunk.before, lines)
    if before:
        return Found(state="applies", line=before[0] + 1)
    after = [at for at in _done(hunk, lines) if _below_its_section(hunk, lines, at)]
    same = [other for other in hunks if (other.before, other.after) == (hunk.before, hunk.after)]
    # The same change in several places of a file is there when each of them is.
    if after and len(after) == len(same):
        number = next(n for n, other in enumerate(same) if other is hunk)
        return Found(state="upstream", line=after[number] + 1)
    return Found(state="conflicts")


def _done(hunk: Hunk, lines: Sequence[str]) -> list[int]:
    """Where the lines after the change stand.

    Lines that were only taken away leave nothing to be seen but their context, so that must be
    where git would look for it, and the lines must not have gone somewhere else in the file.
    """
    if any(line.strip(" \t\r\n(){}[],:") for line in added(hunk)):
        return places(hunk.after, lines)
    if _stands_somewhere(removed(hunk), lines):
        return []
    return _anchored(hunk, hunk.after, lines)


def _below_its_section(hunk: Hunk, lines: Sequence[str], at: int) -> bool:
    """Whether the function or class that a hunk names still stands above it.

    The same lines in another function are another change.
    """
    section = hunk.section.strip()
    above = lines[: at + leading(hunk)]
    return not section or any(line.strip().startswith(section) for line in above)


def _stands_somewhere(block: Sequence[str], lines: Sequence[str]) -> bool:
    wanted = [line.strip() for line in block if line.strip()]
    return bool(wanted) and bool(places(wanted, [line.strip() for line in lines if line.strip()]))


def _anchored(hunk: Hunk, block: Sequence[str], lines: Sequence[str]) -> list[int]:
    """Places where git would take a side of a hunk: one without context ends where the file does."""
    found = places(block, lines)
    if not leading(hunk) and hunk.old_start <= 1:
        found = [at for at in found if at == 0]
    if not trailing(hunk):
        found = [at for at in found if at + len(block) == len(lines)]
    return found


def _shorter(hunk: Hunk) -> int:
    return min(len(hunk.before), len(hunk.after))
