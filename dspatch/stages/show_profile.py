"""A profile as a table, a page, and the object that --json prints."""

from __future__ import annotations

from collections.abc import Sequence

from dspatch.bench.page import Bar, Bars, Page, Table
from dspatch.bench.trace import Spent
from dspatch.console import Console
from dspatch.stages import profile
from dspatch.stages.profile import Profiled
from dspatch.stages.show import relative

HEADERS = ("NAME", "MS OF ITS OWN", "SHARE", "CALLS")
SHOWN = 15


def told(done: Profiled, console: Console) -> None:
    """The longest operators and kernels, and the files."""
    console.say(
        f"{done.name}: {done.profile.total / 1e3:.1f} ms in operators, {done.requests} requests"
    )
    console.table(HEADERS, _rows(done.profile.operators))
    console.table(HEADERS, _rows(done.profile.kernels))
    console.say("; ".join(relative(file) for file in done.files))
    console.result(profile.as_dict(done))


def page_of(done: Profiled) -> Page:
    """The page of a profile."""
    kinds = {"Operators": done.profile.operators, "Kernels": done.profile.kernels}
    return Page(
        title=f"Profile: {done.name}",
        verdict=f"{done.profile.total / 1e3:.1f} ms in operators, {done.requests} requests",
        ok=True,
        about="Time of an operator without what it called, by the engine's own torch profiler, which"
        " itself costs time.",
        tables=tuple(
            Table(title=name, headers=HEADERS, rows=_rows(each))
            for name, each in kinds.items()
            if each
        ),
        bars=tuple(_bars(name, each) for name, each in kinds.items() if each),
    )


def _rows(spent: Sequence[Spent]) -> list[tuple[str, ...]]:
    total = sum(one.microseconds for one in spent) or 1.0
    return [
        (
            one.name,
            f"{one.microseconds / 1e3:.2f}",
            f"{one.microseconds / total:.1%}",
            str(one.calls),
        )
        for one in spent[:SHOWN]
    ]


def _bars(name: str, spent: Sequence[Spent]) -> Bars:
    bars = (
        Bar(label=one.name[:44], value=one.microseconds, text=f"{one.microseconds / 1e3:.2f} ms")
        for one in spent[:SHOWN]
    )
    return Bars(title=name, note=f"the {min(SHOWN, len(spent))} longest", bars=tuple(bars))
