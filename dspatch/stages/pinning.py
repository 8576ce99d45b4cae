"""`dspatch pin add` and `list`: releases known by hash."""

from __future__ import annotations

from collections.abc import Sequence

from dspatch import pins
from dspatch.console import Console
from dspatch.errors import PinError
from dspatch.pins import Pin
from dspatch.pins.add import Added, Request
from dspatch.pins.add import add as add_pin
from dspatch.pins.types import Target


def add(
    engine: str, rev: str, targets: Sequence[Target], accept: Sequence[str], console: Console
) -> Added:
    """Write the pin of a release; `accept` holds PATH=REASON. Raises the errors of `pins.add.add`."""
    console.note(f"looking for {engine} {rev}")
    with console.progress("fetching") as progress:
        return add_pin(
            Request(
                engine=engine,
                rev=rev,
                targets=tuple(targets),
                accept=dict(_accepted(text) for text in accept),
                progress=lambda filename: progress,
            )
        )


def _accepted(text: str) -> tuple[str, str]:
    path, separator, reason = text.partition("=")
    if not (path and separator and reason.strip()):
        raise PinError(
            f"--accept {text} does not say what is accepted and why.",
            why="a difference between base wheel and source needs a reason that others can read",
            next="write it as --accept 'PATH=REASON'",
        )
    return path, reason.strip()


def listed(engine: str | None) -> tuple[Pin, ...]:
    """The pins of an engine, or of all engines."""
    names = [engine] if engine else list(pins.engines())
    return tuple(pin for name in names for pin in pins.pinned(name))
