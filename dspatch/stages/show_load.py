"""A load as a table, a page, and the object that --json prints."""

from __future__ import annotations

from collections.abc import Iterator

from dspatch.bench.page import Bar, Bars, Page, Table
from dspatch.bench.rounds import METRICS, Compared, Spread
from dspatch.console import Console
from dspatch.stages import load
from dspatch.stages.load import Loaded
from dspatch.stages.show import relative

HEADERS = ("METRIC", "SUBJECT", "PEER", "SUBJECT / PEER", "SAME SERVER", "")


def told(done: Loaded, console: Console) -> None:
    """The comparison; raises `LoadError` behind it when requests failed."""
    for name, what in done.names.items():
        console.say(f"{name}: {what}")
    console.table(HEADERS, [_row(one) for one in done.compared])
    console.say(_about(done))
    console.say("; ".join(relative(file) for file in done.files))
    console.result(load.as_dict(done))
    load.check(done)


def _row(one: Compared) -> tuple[str, ...]:
    unit = METRICS[one.metric][0]
    pair = f"{one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})"
    ours, theirs = (f"{_spread(each)} {unit}" for each in (one.subject, one.peer))
    return (one.metric, ours, theirs, pair, f"up to {one.same:.2f}", one.verdict)


def _spread(one: Spread) -> str:
    return f"{one.median:.4g} ({one.low:.4g} to {one.high:.4g})"


def _about(done: Loaded) -> str:
    asked = done.wanted.load
    return (
        f"{done.wanted.rounds} rounds each in turns, of {asked.requests} requests, {asked.concurrency} at once,"
        f" {asked.prompt_tokens} tokens in and {asked.output_tokens} out; {done.errors} errors;"
        " median, least and most; SAME SERVER: how far two rounds of one server are apart"
    )


def page_of(done: Loaded) -> Page:
    """The page of a load."""
    worse = [one.metric for one in done.compared if one.verdict == "worse"]
    better = [one.metric for one in done.compared if one.verdict == "better"]
    words = [f"worse: {', '.join(worse)}"] if worse else []
    words += [f"better: {', '.join(better)}"] if better else []
    failed = [f"{done.errors} requests failed"] if done.errors else []
    return Page(
        title=f"Load: {done.names['subject']} beside {done.names['peer']}",
        verdict="; ".join(failed + words) or "no difference seen beyond the spread of one server",
        ok=not worse and not failed,
        about=_about(done),
        tables=(
            Table(title="Compared", headers=HEADERS, rows=[_row(one) for one in done.compared]),
        ),
        bars=tuple(_bars(done)),
    )


def _bars(done: Loaded) -> Iterator[Bars]:
    for one in done.compared:
        unit, less = METRICS[one.metric]
        pairs = (("subject", one.subject), ("peer", one.peer))
        yield Bars(
            title=f"{one.metric} a second" if unit == "/s" else f"{one.metric}, {unit}",
            note=f"{'less' if less else 'more'} is better: {one.verdict}",
            bars=tuple(
                Bar(
                    label=name,
                    value=each.median,
                    low=each.low,
                    high=each.high,
                    text=_spread(each),
                    kind="mark" if name == "subject" else "soft",
                )
                for name, each in pairs
            ),
        )
