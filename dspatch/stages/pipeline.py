"""`dspatch run`: from a pin to a proven wheel, five stages in a row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dspatch import receipt
from dspatch.console import Console
from dspatch.stages import apply, build, prove
from dspatch.stages.apply import Applied
from dspatch.stages.build import Built
from dspatch.stages.proving import Proven, Wanted
from dspatch.stages.request import Request
from dspatch.wheel.verify import verify


@dataclass(frozen=True, kw_only=True)
class Done:
    """The three results of a whole run, and how long each stage took, in seconds."""

    applied: Applied
    built: Built
    proven: Proven
    seconds: dict[str, float] = field(default_factory=dict)


def run(
    request: Request,
    console: Console,
    wanted: Wanted,
    *,
    discard_edits: bool = False,
    without_extensions: bool = False,
) -> Done:
    """Apply, build, verify and prove; a stage whose inputs did not change is not done again."""
    seconds: dict[str, float] = {}
    with _timed("apply", seconds):
        applied = apply.run(request, console, discard_edits=discard_edits)
    with _timed("build-wheel", seconds):
        how = build.usual(applied.job)
        built = build.run(applied.job, console, how, without_extensions=without_extensions)
    with _timed("verify", seconds):
        verify(built.path, build.base_of(built, console))
    with _timed("conformance", seconds):
        proven = prove.run(applied.job, console, wanted)
    receipt.write(applied.job, "run", {"seconds": seconds, "wheel": built.sha256})
    return Done(applied=applied, built=built, proven=proven, seconds=seconds)


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - start, 2)
