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
MOVED = ("MB", "GB/S")  # of kernels, where bytes were counted
SHOWN = 15
LONG = 72  # characters of a name; templates of C++ have hundreds


def told(done: Profiled, console: Console) -> None:
    """The longest operators and kernels, and the files."""
    console.say(f"{done.name}: {done.verdict}")
    for spent in filter(None, (done.profile.operators, done.profile.kernels)):
        console.table(_headers(spent), _rows(spent))
    console.say("; ".join(relative(file) for file in done.files))
    console.result(profile.as_dict(done))


def page_of(done: Profiled) -> Page:
    """The page of a profile."""
    kinds = {"Operators": done.profile.operators, "Kernels": done.profile.kernels}
    return Page(
        title=f"Profile: {done.name}",
        verdict=done.verdict,
        ok=True,
        about=_about(done),
        tables=tuple(
            Table(title=name, headers=_headers(each), rows=_rows(each))
            for name, each in kinds.items()
            if each
        ),
        bars=tuple(_bars(name, each) for name, each in kinds.items() if each),
    )


def _about(done: Profiled) -> str:
    if done.profile.operators:
        return f"Time of an operator without what it called, by {done.by}, which itself costs time."
    return (
        f"Time of the kernels that were counted, and the bytes of memory they moved, by {done.by}."
    )


def _rows(spent: Sequence[Spent]) -> list[tuple[str, ...]]:
    total = sum(one.microseconds for one in spent) or 1.0
    return [
        (
            short(one.name),
            f"{one.microseconds / 1e3:.2f}",
            f"{one.microseconds / total:.1%}",
            str(one.calls),
            *_moved(one),
        )
        for one in spent[:SHOWN]
    ]


def _headers(spent: Sequence[Spent]) -> tuple[str, ...]:
    return HEADERS + (MOVED if any(one.moved is not None for one in spent) else ())


def _moved(one: Spent) -> tuple[str, ...]:
    if one.moved is None or one.rate is None:
        return ()
    return f"{one.moved / 1e6:.1f}", f"{one.rate / 1e9:.0f}"


def short(name: str) -> str:
    """The name of an operator or a kernel without arguments, and not longer than a line."""
    plain = _named(name.removeprefix("void "))
    return plain if len(plain) <= LONG else f"{plain[: LONG - 1]}…"


def _named(called: str) -> str:
    """A signature without the parentheses that end it, whatever stands in them."""
    depth = 0
    for place in reversed(range(len(called) if called.endswith(")") else 0)):
        depth += {")": 1, "(": -1}.get(called[place], 0)
        if depth == 0:
            return called[:place] or called
    return called


def _bars(name: str, spent: Sequence[Spent]) -> Bars:
    bars = (
        Bar(
            label=short(one.name)[:44],
            value=one.microseconds,
            text=f"{one.microseconds / 1e3:.2f} ms",
        )
        for one in spent[:SHOWN]
    )
    return Bars(title=name, note=f"the {min(SHOWN, len(spent))} longest", bars=tuple(bars))
