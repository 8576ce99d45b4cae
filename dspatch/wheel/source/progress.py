"""How far a build is, from what its log says: steps done, of how many, and an estimate of what is left."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Ninja and make say it so: `[12/345] Building CXX object ...`, `[ 12%] Building ...`.
_NINJA = re.compile(rb"\[(\d+)/(\d+)\]")
_MAKE = re.compile(rb"\[\s*(\d+)%\]")
_EVERY = 1.0  # seconds


def step_of(said: bytes, seconds: float) -> str | None:
    """What the end of a log says of the build, `seconds` after its begin; `None` when nothing."""
    for pattern, total in ((_NINJA, None), (_MAKE, 100)):
        found = pattern.findall(said)
        if found:
            done, whole = (int(found[-1]), total) if total else map(int, found[-1])
            assert whole is not None
            unit = "%" if total else f" of {whole} steps"
            return f"{done}{unit}{_left(done, whole, seconds)}"
    return None


@contextmanager
def told(log: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Say how far the build is while the block runs."""
    over, begin = threading.Event(), time.monotonic()
    start = log.stat().st_size if log.exists() else 0

    def follow() -> None:
        while not over.wait(_EVERY):
            step = step_of(_end(log, start), time.monotonic() - begin)
            if step:
                tell(step)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _left(done: int, whole: int, seconds: float) -> str:
    if not 0 < done < whole:
        return ""
    left = seconds / done * (whole - done)
    return f", about {left / 60:.0f} min left" if left >= 60 else f", about {left:.0f} s left"


def _end(log: Path, start: int) -> bytes:
    with log.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(start, size - 8192))
        return stream.read()
