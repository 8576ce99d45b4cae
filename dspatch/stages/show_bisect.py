"""A bisection as a sentence and a table of the releases tried, and as the object that --json prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dspatch.bisect.probe import Tried
from dspatch.bisect.search import Boundary
from dspatch.conformance.render import number
from dspatch.console import Console
from dspatch.stages import bisect
from dspatch.stages.bisect import Bisected

WIDTH = 100  # characters of a reason in the table


def found(done: Bisected, console: Console) -> None:
    """What was found; raises `BisectError` behind it where there was no change."""
    console.table(
        ("RELEASE", "VERDICT", "MEASURED", "SECONDS", "WHY"), [_row(t) for t in done.tried]
    )
    if isinstance(done.found, Boundary):
        console.say(sentence(done))
        console.say(f"{len(done.tried)} of {len(done.among)} releases were tried")
    console.result(as_dict(done))
    bisect.check(done)


def sentence(done: Bisected) -> str:
    """The change in words, with what is not known of it."""
    change = done.found
    assert isinstance(change, Boundary)
    verb = "passes from" if change.starts else "no longer passes from"
    of = f"{done.asked.check} of {done.asked.model}"
    if not change.unknown:
        return f"{of} {verb} {change.after} on; the last before it is {change.before}"
    between = f"{', '.join(change.unknown)} could not be run"
    return (
        f"{of} {verb} some release after {change.before}, {change.after} at the latest: {between}"
    )


def as_dict(done: Bisected) -> dict[str, Any]:
    """The whole result as JSON values."""
    return {
        "engine": done.asked.engine,
        "check": done.asked.check,
        "model": done.asked.model,
        "variables": dict(done.asked.variables),
        "found": asdict(done.found) if isinstance(done.found, Boundary) else None,
        "tried": [asdict(one) for one in done.tried],
        "among": list(done.among),
    }


def _row(one: Tried) -> tuple[str, ...]:
    at = f"first wrong at {one.found_at}; " if one.found_at else ""
    why = " ".join(f"{at}{one.why}".split())
    seconds = "kept" if one.kept else f"{one.seconds:.0f}" if one.seconds else ""
    short = why if len(why) <= WIDTH else why[: WIDTH - 1] + "…"
    return (one.version, one.verdict, f"{number(one.measured)} {one.unit}".strip(), seconds, short)
