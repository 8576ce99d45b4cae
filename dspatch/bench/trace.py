"""A trace of torch's profiler, read: the time that each operator and each kernel took by itself."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch.errors import ProfileError

OPERATORS = ("cpu_op",)
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What one name took: microseconds without what it called, and how often."""

    name: str
    microseconds: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Operators of the CPU and kernels of GPUs, the longest first."""

    operators: tuple[Spent, ...]
    kernels: tuple[Spent, ...]

    @property
    def total(self) -> float:
        """Microseconds of all operators."""
        return sum(one.microseconds for one in self.operators)


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
            operators=_summed(_alone(_of(events, OPERATORS))),
            kernels=_summed((e["name"], float(e["dur"])) for e in _of(events, KERNELS)),
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


def _summed(spent: Iterable[tuple[str, float]]) -> tuple[Spent, ...]:
    times: dict[str, list[float]] = {}
    for name, length in spent:
        times.setdefault(name, []).append(length)
    rows = (Spent(name=n, microseconds=sum(each), calls=len(each)) for n, each in times.items())
    return tuple(sorted(rows, key=lambda one: -one.microseconds))
