"""`dspatch pin add` and `list`: releases known by hash."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from dspatch import pins
from dspatch.console import Console
from dspatch.errors import PinError
from dspatch.pins import Bound, Pin, Setting, store
from dspatch.pins.add import Added, Request
from dspatch.pins.add import add as add_pin
from dspatch.pins.types import Target


def add(
    engine: str,
    rev: str,
    targets: Sequence[Target],
    accept: Sequence[str],
    console: Console,
    *,
    torch: str | None = None,
    from_source: Sequence[Target] = (),
    settings: Sequence[str] = (),
    bounds: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Added:
    """Write the pin of a release; `accept` holds PATH=REASON, the two last REQUIREMENT: REASON.

    `torch` is the version that targets without a base wheel are compiled with, those of `from_source`
    in any case; `settings` of the build hold NAME=VALUE: REASON. Raises the errors of
    `pins.add.add`, and `PinError` for what is not in such a form.
    """
    console.note(f"looking for {engine} {rev}")
    with console.progress("fetching") as progress:
        return add_pin(
            Request(
                engine=engine,
                rev=rev,
                targets=tuple(targets),
                accept=dict(_accepted(text) for text in accept),
                torch=_version(torch) if torch else None,
                from_source=tuple(from_source),
                settings=tuple(_setting(text) for text in settings),
                bounds=tuple(_bound("--bound", text) for text in bounds),
                overrides=tuple(_bound("--override", text) for text in overrides),
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


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise PinError(f"--torch {text} is no version.", next="write it as 2.13.0") from None


def _setting(text: str) -> Setting:
    told, _, reason = (part.strip() for part in text.partition(": "))
    variable, _, value = told.partition("=")
    if not (store.VARIABLE.fullmatch(variable) and value and reason):
        raise PinError(
            f"--setting {text} does not say which variable, its value, and why.",
            why="a setting that is not upstream's own needs a reason that others can read",
            next="write it as --setting 'NAME=VALUE: REASON'",
        )
    return Setting(variable=variable, value=value, reason=reason)


def _bound(option: str, text: str) -> Bound:
    requirement, _, reason = (part.strip() for part in text.partition(": "))
    if not (store.bounds(requirement) and reason):
        raise PinError(
            f"{option} {text} does not say which versions, and why.",
            why="a requirement that is not the wheel's own needs a reason that others can read",
            next=f"write it as {option} 'transformers<5: REASON'",
        )
    return Bound(requirement=requirement, reason=reason)


def listed(engine: str | None) -> tuple[Pin, ...]:
    """The pins of an engine, or of all engines."""
    names = [engine] if engine else list(pins.engines())
    return tuple(pin for name in names for pin in pins.pinned(name))
