"""Search a log for many signatures at once: letters first, in blocks; expressions on the lines that have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from dspatch.audit import linear
from dspatch.serve.doctor import lines
from dspatch.serve.doctor.lines import Block

ENOUGH = 20  # matches of a signature; after these its letters are looked for no more
BEFORE = 16384  # bytes before a line in which `near` must match


class Sought(Protocol):
    """What is looked for: an expression, letters that each of its matches has, what must stand before."""

    @property
    def regex(self) -> re.Pattern[str]:
        """The expression."""

    @property
    def needle(self) -> bytes:
        """The letters."""

    @property
    def near(self) -> re.Pattern[str] | None:
        """What must match shortly before."""


Key = TypeVar("Key", bound=Sought)


@dataclass(frozen=True, kw_only=True)
class Hit(Generic[Key]):
    """A line that matches: its number, its text, and what the expression's groups hold."""

    sought: Key
    number: int
    text: str
    groups: dict[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Scan(Generic[Key]):
    """The matches of everything that is sought, in the order of the log; at most `ENOUGH` of each."""

    sought: tuple[Key, ...]
    hits: list[Hit[Key]] = field(default_factory=list)
    _found: dict[int, int] = field(default_factory=dict)
    _tail: bytes = b""

    def block(self, block: Block) -> None:
        """Search one block of whole lines."""
        data, at, number = block.data, 0, block.first
        for start, keys in sorted(self._candidates(data).items()):
            number += data.count(b"\n", at, start)
            at = start
            end = data.find(b"\n", start)
            line = data[start : end if end >= 0 else len(data)]
            for key in keys:
                self._line(key, line, number, data, start)
        self._tail = data[-BEFORE:]

    def _candidates(self, data: bytes) -> dict[int, list[int]]:
        """Where lines begin that have the letters of something sought, and of what."""
        found: dict[int, list[int]] = {}
        for gate, keys in self._gates().items():
            at = data.find(gate)
            while at >= 0:
                found.setdefault(data.rfind(b"\n", 0, at) + 1, []).extend(keys)
                end = data.find(b"\n", at)
                at = data.find(gate, end) if end >= 0 else -1
        return found

    def _gates(self) -> dict[bytes, list[int]]:
        """The letters of what was not found often enough yet."""
        gates: dict[bytes, list[int]] = {}
        for index, each in enumerate(self.sought):
            if self._found.get(index, 0) < ENOUGH:
                gates.setdefault(linear.gate(each.regex.pattern).encode(), []).append(index)
        return gates

    def _line(self, key: int, line: bytes, number: int, data: bytes, start: int) -> None:
        sought = self.sought[key]
        around = line.find(sought.needle)
        if around < 0 or self._found.get(key, 0) >= ENOUGH:
            return
        for text in lines.parts(line, around):
            match = sought.regex.search(text)
            if match is None or not self._near(sought, data, start):
                continue
            self._found[key] = self._found.get(key, 0) + 1
            groups = {name: value for name, value in match.groupdict().items() if value}
            self.hits.append(Hit(sought=sought, number=number, text=text, groups=groups))
            return

    def _near(self, sought: Sought, data: bytes, start: int) -> bool:
        if sought.near is None:
            return True
        before = (
            (self._tail + data[:start])[-BEFORE:]
            if start < BEFORE
            else data[start - BEFORE : start]
        )
        return any(
            sought.near.search(text) for line in before.split(b"\n") for text in lines.parts(line)
        )


def scanned(text: bytes, sought: Iterable[Key]) -> list[Hit[Key]]:
    """The matches in a text that is all there."""
    scan = Scan(sought=tuple(sought))
    scan.block(Block(data=text, first=1))
    return scan.hits
