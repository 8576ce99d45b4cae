"""A server and its children: which they are, and what memory and open files they hold, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes of resident memory, shared pages counted once over the tree where /proc tells, and open files."""

    memory: int
    files: int


def held(pid: int) -> Held | None:
    """What a process and all that came from it hold; `None` when it is gone."""
    if not (PROC / str(pid)).exists():
        return None
    family = list(tree(pid))
    return Held(memory=sum(map(_memory, family)), files=sum(map(_files, family)))


def tree(pid: int) -> Iterator[int]:
    """A process and everything that came from it."""
    children: dict[int, list[int]] = {}
    for place in PROC.iterdir():
        if place.name.isdigit() and (parent := _parent(place)) is not None:
            children.setdefault(parent, []).append(int(place.name))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += children.get(one, [])


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its status does not."""
    with suppress(OSError, IndexError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def program(pid: int) -> str:
    """The name of the program that a process runs, as it was called; empty when it is gone."""
    with suppress(OSError):
        called = (PROC / str(pid) / "cmdline").read_bytes().partition(b"\0")[0]
        return Path(os.fsdecode(called)).name
    return ""


def _parent(place: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        # The name of the program stands in parentheses and may hold anything.
        return int((place / "stat").read_text().rpartition(")")[2].split()[1])
    return None


def _memory(pid: int) -> int:
    for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with suppress(OSError):
            for line in (PROC / str(pid) / name).read_text().splitlines():
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
    return 0


def _files(pid: int) -> int:
    with suppress(OSError):
        return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
    return 0
