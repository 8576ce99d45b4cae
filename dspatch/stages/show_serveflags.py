"""Verdicts on options, variables and metrics as a table, and as the object that --json prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from dspatch.console import Console
    from dspatch.serve.known import Known
    from dspatch.serve.verdict import Verdict
    from dspatch.stages.serveflags import Checked

_MARKS = {
    "known": "ok", "deprecated": "deprecated", "unknown": "UNKNOWN", "wrong": "WRONG",
    "undecided": "UNDECIDED", "unchecked": "-",
}  # fmt: skip
_LONGEST = 48  # of a word and its values; --json has them whole


def checked(done: Checked, console: Console) -> None:
    """Every word with its state, when it was there, and what to do."""
    version = done.version or "of an unknown release"
    console.say(f"{done.engine} {version} ({done.kind}), {done.subject}: {counts(done)}")
    console.say("")
    console.table(
        ("", "WORD", "THERE", ""),
        [(_MARKS[each.state], word(each), each.exists, said(each)) for each in done.verdicts],
    )
    _remarks(done, console)
    for note in done.notes:
        console.note(f"note: {note}")
    console.note(
        f"{done.origin}: {done.bytes / 1e6:.2f} MB in {done.requests} requests, {done.seconds:.1f} s"
    )
    console.result(as_dict(done))


def _remarks(done: Checked, console: Console) -> None:
    """What `dspatch audit` knows of these words on this source."""
    if not done.remarks:
        return
    console.say("")
    console.say("What `dspatch audit` knows of these words; --explain ID says more:")
    console.table(
        ("SEVERITY", "ID", "WHEN", ""),
        [(each.severity, each.finding, each.when, each.title) for each in done.remarks],
    )


def counts(done: Checked) -> str:
    """How many verdicts of each state."""
    states = [each.state for each in done.verdicts]
    told = [f"{states.count(name)} {name}" for name in _MARKS if name in states]
    return ", ".join(told) or "nothing to check"


def said(each: Verdict) -> str:
    """What to do about one name, in a line."""
    instead = f"→ {', '.join(each.instead)}" if each.instead else ""
    parts = [" ".join(part for part in (each.say, instead) if part)]
    if each.nearest:
        parts.append(f"nearest: {each.nearest}")
    if each.finding:
        parts.append(f"dspatch audit --explain {each.finding}")
    return "; ".join(part for part in parts if part)


def word(each: Verdict) -> str:
    """A word with its values, as it was given."""
    joined = each.values and each.word.endswith(f"={each.values[0]}")
    text = each.word if joined else " ".join((each.word, *each.values))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def as_dict(done: Checked) -> dict[str, Any]:
    """What was checked, as an object."""
    return {
        "engine": done.engine,
        "version": done.version,
        "source": {"kind": done.kind, "origin": done.origin},
        "subject": done.subject,
        "clean": not done.failing,
        "verdicts": [
            {**vars(each), "values": list(each.values), "instead": list(each.instead)}
            for each in done.verdicts
        ],
        "remarks": [vars(each) for each in done.remarks],
        "notes": list(done.notes),
        "bytes": done.bytes,
        "requests": done.requests,
        "seconds": done.seconds,
    }


def wrote(known: Known, path: Path, changed: bool, seconds: float, console: Console) -> None:
    """That a record was written."""
    counted = ", ".join(f"{len(names)} {kind}" for kind, names in known.names.items())
    console.say(f"{path}: {'written' if changed else 'unchanged'}; {counted}")
    console.note(f"{len(known.releases)} releases, {seconds:.0f} s")
    console.result({"path": str(path), "changed": changed, "releases": list(known.releases)})


def holds(known: Known, engine: str, console: Console) -> None:
    """That a record holds."""
    console.say(f"{engine}: the record holds on {len(known.releases)} releases")
    console.result({"engine": engine, "holds": True, "releases": list(known.releases)})
