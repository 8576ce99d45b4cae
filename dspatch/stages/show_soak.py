"""A soak as lines, a page, and the object that --json prints."""

from __future__ import annotations

from collections.abc import Iterator

from dspatch.bench.page import Line, Page, Table
from dspatch.bench.slope import Slope
from dspatch.console import Console
from dspatch.stages import soak
from dspatch.stages.show import relative
from dspatch.stages.soak import DAY, Result

MIB = float(1 << 20)


def told(done: Result, console: Console) -> None:
    """What was seen; raises `LeakError` behind it when something is wrong."""
    for name, what in _rows(done):
        console.say(f"{name}: {what}")
    console.say(_verdict(done))
    console.say("; ".join(relative(file) for file in done.files))
    console.result(soak.as_dict(done))
    soak.check(done)


def page_of(done: Result) -> Page:
    """The page of a soak."""
    return Page(
        title=f"Soak: {done.name}",
        verdict=_verdict(done),
        ok=not done.wrong,
        about="Sampled at rest after each cycle; the first fifth of the samples is left out of the"
        " lines. Bounds are one-sided, 95 %.",
        tables=(Table(title="What was seen", headers=("", ""), rows=list(_rows(done))),),
        lines=tuple(_lines(done)),
    )


def _verdict(done: Result) -> str:
    open_still = soak.undecided(done)
    found = list(done.wrong) or ["no drift seen" if open_still else "no growth and no drift seen"]
    return "; ".join([*found, *filter(None, [open_still])])


def _rows(done: Result) -> Iterator[tuple[str, str]]:
    found = done.soaked
    seconds = found.samples[-1].seconds if found.samples else 0.0
    yield "server", done.name
    counts = f"{found.left} left early, {found.errors} failed"
    yield "load", f"{found.requests} requests in {seconds:.0f} s, {counts}"
    yield "memory", _slope(done.memory, MIB, "MiB")
    if done.card is not None:
        yield "GPU memory", _slope(done.card, MIB, "MiB")
    if done.blocks is not None:
        yield "KV blocks in use at rest", _slope(done.blocks, 0.01, "%")
    files = [sample.files for sample in found.samples]
    if files:
        yield "open files", f"{files[0]} at first, {files[-1]} at the end"
    same = sum(e == late for e, late in zip(found.early, found.late, strict=False))
    yield "greedy answers that stayed", f"{same} of {len(found.early)}"


def _slope(one: Slope | None, unit: float, name: str) -> str:
    if one is None:
        return "too few samples for a slope"
    low, middle, high = (_signed(value * DAY / unit) for value in (one.low, one.slope, one.high))
    return (
        f"{middle} {name} a day ({low} to {high}), from {one.start / unit:,.0f} {name};"
        f" {one.samples} samples"
    )


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if round(value) else "0"


def _lines(done: Result) -> Iterator[Line]:
    samples = done.soaked.samples
    memory = [(s.seconds, float(s.memory)) for s in samples]
    card = [(s.seconds, float(s.card)) for s in samples if s.card is not None]
    blocks = [(s.seconds, s.blocks) for s in samples if s.blocks is not None]
    for title, unit, scale, points, line in (
        ("memory", "MiB", MIB, memory, done.memory),
        ("GPU memory", "MiB", MIB, card, done.card),
        ("KV blocks in use at rest", "%", 0.01, blocks, done.blocks),
    ):
        if len(points) > 1:
            yield Line(
                title=title,
                note=_slope(line, scale, unit),
                unit=unit,
                points=tuple((t, value / scale) for t, value in points),
                fit=None if line is None else _ends(line, scale),
            )


def _ends(line: Slope, scale: float) -> tuple[tuple[float, float], tuple[float, float]]:
    first, last = line.first, line.last
    return (first, line.at(first) / scale), (last, line.at(last) / scale)
