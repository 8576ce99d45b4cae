"""A count of false alarms as a table of checks, as sentences about what it bounds, and as the object of --json."""

from __future__ import annotations

from collections.abc import Iterator

from dspatch.bench.alarms import Count, Nearest
from dspatch.conformance import checks
from dspatch.conformance.render import number
from dspatch.console import Console
from dspatch.stages import alarms
from dspatch.stages.alarms import Counted
from dspatch.stages.show import relative

HEADERS = ("CHECK", "LARGEST", "TOLERANCE", "MARGIN", "ON", "NOT SHOWN")


def told(done: Counted, console: Console) -> None:
    """What was counted; raises `FalseAlarmError` behind it when a check failed."""
    console.table(HEADERS, rows(done.count))
    for line in sentences(done):
        console.say(line)
    console.say(relative(done.file))
    console.result(
        {"engine": done.name, "dtype": done.dtype, "file": done.file, **done.count.as_dict()}
    )
    alarms.check(done)


def rows(count: Count) -> list[tuple[str, ...]]:
    """The checks in their order: how near each came to its tolerance, and how often it showed nothing."""
    found, unshown = count.nearest, count.unshown
    return [
        (name, *_cells(found.get(name)), str(unshown[name] or ""))
        for name in checks.CHECKS
        if name in found or name in unshown
    ]


def _cells(one: Nearest | None) -> tuple[str, ...]:
    if one is None:
        return ("", "", "", "")
    margin = f"{one.margin:,.3g}" if one.measured else ""
    return (number(one.measured), number(one.tolerance), margin, one.pair)


def sentences(done: Counted) -> Iterator[str]:
    """How many were judged, how many failed, and what that says of the engines of others."""
    count = done.count
    yield (
        f"{done.name} in {done.dtype}: {len(count.rows)} checkpoints, {count.pairs} pairs with a set of"
        f" prompts, {count.judged} checks judged, {len(count.alarms)} failed"
    )
    if count.redrawn:
        yield f"prompts drawn again, as a router nearly tied on them: {count.redrawn} of {count.pairs} pairs"
    if count.bound is not None and count.bound_of_checkpoints is not None:
        yield (
            f"with 95 % confidence fewer than {_share(count.bound)} of such pairs fail a sound engine,"
            f" and fewer than {_share(count.bound_of_checkpoints)} of such checkpoints"
        )


def _share(value: float) -> str:
    return f"{100 * value:.3g}%"
