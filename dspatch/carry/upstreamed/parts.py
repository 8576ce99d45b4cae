"""What is looked for in a tree: a change, its parts, and the files that it is looked for in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dspatch.carry.upstreamed.hunkfind import State

Search = Callable[[str], Iterable[str]]


class Readable(Protocol):
    """The files of a tree by path."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there."""

    def paths(self) -> Collection[str]:
        """Every path."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One hunk of a change, or what it does to a file as a whole, and whether a tree has it already.

    `number` counts the hunks of a file from 1; 0 is the file as a whole.
    """

    path: str
    number: int
    title: str
    state: State
    where: str = ""
    by_symbol: bool = False

    def __str__(self) -> str:
        what = f"hunk {self.number}" if self.number else "the file"
        at = f" at {self.where}" if self.where else ""
        return f"{what} of {self.path}{f' ({self.title})' if self.title else ''}{at}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to look for: its diff, and the files on both sides of it as far as they are known."""

    diff: str
    before: Mapping[str, bytes | None]
    after: Mapping[str, bytes | None]
