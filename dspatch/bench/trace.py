"""A trace of torch's profiler, read: the time that each operator and each kernel took by itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch.errors import ProfileError

OPERATORS = ("cpu_op",)
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What one name took: microseconds without what it called, and how often.

    `moved` is how many bytes of a GPU's memory it read and wrote, where that was counted.
    """

    name: str
    microseconds: float
    calls: int
    moved: float | None = None

    @property
    def rate(self) -> float | None:
        """Bytes a second."""
        return None if self.moved is None else self.moved / max(self.microseconds, 1e-9) * 1e6


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Operators of the CPU and kernels of GPUs, the longest first."""

    operators: tuple[Spent, ...]
    kernels: tuple[Spent, ...]

    @property
    def total(self) -> float:
        """Microseconds of all operators."""
        return sum(one.microseconds for one in self.operators)

    @property
    def counted(self) -> float:
        """Microseconds of all kernels."""
        return sum(one.microseconds for one in self.kernels)

    @property
    def launches(self) -> int:
        """How many kernels ran."""
        return sum(one.calls for one in self.kernels)


def of_folder(folder: Path) -> Profile:
    """The profile of the process that computed: of all traces in a folder the one with most operators.

    Raises `ProfileError` when there is no trace, or none with an operator.
    """
    files = sorted(path for end in ("*.json", "*.json.gz") for path in folder.glob(end))
    found = [read(path) for path in files]
    best = max(found, key=lambda one: one.total, default=None)
    if best is None or not best.operators:
        raise ProfileError(
            "the engine's profiler left no trace of any operator.",
            why=f"{len(files)} traces in {folder}",
            next="read the server's log beside it",
        )
    return best


def read(path: Path) -> Profile:
    """A trace file, packed or not. Raises `ProfileError` for one that is none."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        events = [e for e in json.loads(raw)["traceEvents"] if isinstance(e, Mapping)]
        return Profile(
            operators=summed(_once(*each) for each in _alone(_of(events, OPERATORS))),
            kernels=summed(_once(e["name"], float(e["dur"])) for e in _of(events, KERNELS)),
        )
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        raise ProfileError(
            f"{path.name} is no trace of torch's profiler.",
            why=f"{type(error).__name__}: {error}",
            next="profile again; the engine may have been stopped while it wrote",
        ) from None


def _of(events: Iterable[Mapping[str, Any]], kinds: tuple[str, ...]) -> list[Mapping[str, Any]]:
    return [e for e in events if e.get("ph") == "X" and e.get("cat") in kinds and "dur" in e]


def _alone(events: list[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Names with the time that none of the events within took, thread by thread."""
    threads: dict[Any, list[Mapping[str, Any]]] = {}
    for event in events:
        threads.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    for own in threads.values():
        yield from _thread(own)


def _thread(events: list[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    open_now: list[list[Any]] = []  # name, end, time of its own
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        begin, length = float(event["ts"]), float(event["dur"])
        while open_now and open_now[-1][1] <= begin:
            name, _, own = open_now.pop()
            yield name, own
        if open_now:
            open_now[-1][2] -= min(length, open_now[-1][1] - begin)
        open_now.append([event["name"], begin + length, length])
    yield from ((name, own) for name, _, own in open_now)


def _once(name: str, length: float) -> Spent:
    return Spent(name=name, microseconds=length, calls=1)


def summed(spent: Iterable[Spent]) -> tuple[Spent, ...]:
    """One for each name, the longest first."""
    named: dict[str, list[Spent]] = {}
    for one in spent:
        named.setdefault(one.name, []).append(one)
    return tuple(sorted(map(_together, named.values()), key=lambda one: -one.microseconds))


def _together(alike: Sequence[Spent]) -> Spent:
    counted = [one.moved for one in alike if one.moved is not None]
    return Spent(
        name=alike[0].name,
        microseconds=sum(one.microseconds for one in alike),
        calls=sum(one.calls for one in alike),
        moved=sum(counted) if len(counted) == len(alike) else None,
    )
