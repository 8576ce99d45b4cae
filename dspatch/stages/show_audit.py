"""An audit as a table with its evidence, and as the object that --json prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dspatch.audit import confirmed
from dspatch.audit.finding import SEVERITIES
from dspatch.audit.probe import BEYOND

if TYPE_CHECKING:
    from dspatch.audit.nearest import Nearest
    from dspatch.console import Console
    from dspatch.stages.audit import Audited, Found

_COLOURS = {
    "wrong": "red", "crash": "magenta", "slow": "yellow", "missing": "cyan", "misleading": "blue",
    "unknown": "white",
}  # fmt: skip
_WIDTH = 10  # of the longest severity
_LONGEST = 60  # of a condition in the table
_TABLE = 200  # columns below which its lines would wrap
_SHOWN = 3  # places of evidence; --json has all


def audited(done: Audited, console: Console, *, details: bool = False) -> None:
    """Every finding that the source has or may have, the gravest first, and what helps.

    Those that hold under a condition which the user did not name are a line each, unless `details`.
    """
    console.say(f"{subject(done)}: {counts(done)}")
    for fault in done.faults:
        lines = [("id", "checkpoint"), ("seen in", fault.evidence)]
        _block(fault.severity, fault.title, lines, console)
    for found in done.has:
        if details or not found.when:
            _block(found.finding.severity, found.finding.title, _lines(found, done), console)
    for found in done.unknown:
        _block("unknown", found.finding.title, _lines(found, done), console)
    if not details:
        _conditional([found for found in done.has if found.when], console)
    _notes(done, console)
    console.result(as_dict(done))


def subject(done: Audited) -> str:
    """What was audited, for whom."""
    version = done.version or "of an unknown release"
    models = ", ".join(done.models) if len(done.models) <= 4 else f"{len(done.models)} models"
    place = " ".join(dict.fromkeys(each for each in (done.target, done.card) if each))
    return f"{done.engine} {version} ({done.kind}), {models}" + (f" on {place}" if place else "")


def counts(done: Audited) -> str:
    """How many findings of each severity, and how many more under conditions."""
    severities = [found.finding.severity for found in done.has if not found.when]
    severities += [fault.severity for fault in done.faults]
    told = [f"{severities.count(each)} {each}" for each in SEVERITIES if each in severities]
    told += [f"{len(done.unknown)} unknown"] if done.unknown else []
    more = sum(bool(found.when) for found in done.has)
    told += [f"{more} under conditions"] if more else []
    return ", ".join(told) or "nothing that is known"


def _block(severity: str, title: str, lines: Sequence[tuple[str, str]], console: Console) -> None:
    console.say("")
    console.say(f"{_mark(severity)}  {title}")
    for label, text in lines:
        console.say(f"{'':{_WIDTH}}  {label:<9} {text}")


def _mark(severity: str) -> str:
    return click.style(severity.ljust(_WIDTH), fg=_COLOURS[severity], bold=True)


def _conditional(found: Sequence[Found], console: Console) -> None:
    """One line a finding: what must be so, what happens, since when it is good, and whether a patch helps."""
    if not found:
        return
    console.say("")
    console.say(
        "Under a condition (--details shows these in full; --target, --gpu and the command decide):"
    )
    if console.columns is not None and console.columns < _TABLE:
        _stacked(found, console)
        return
    console.table(
        ("SEVERITY", "WHEN", "ID", "GOOD FROM", "PATCH", ""),
        [
            (
                each.finding.severity,
                _short("; ".join(each.when)),
                each.finding.id,
                _first_good(each),
                (each.finding.fix or "") if each.command else "",
                each.finding.title,
            )
            for each in found
        ],
    )


def _stacked(found: Sequence[Found], console: Console) -> None:
    """The same for a terminal that the table does not fit: two lines a finding."""
    for each in found:
        console.say(f"{_mark(each.finding.severity)}  {each.finding.title}")
        told = [each.finding.id, _short("; ".join(each.when)), f"good from: {_first_good(each)}"]
        console.say(f"{'':{_WIDTH}}  {' · '.join(told)}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _lines(found: Found, done: Audited) -> list[tuple[str, str]]:
    finding = found.finding
    lines = [("id", finding.id)]
    if len(found.models) < len(done.models):
        lines.append(("models", ", ".join(found.models)))
    if found.when:
        lines.append(("when", "; ".join(found.when)))
    lines += [("seen in", str(place)) for place in found.answer.evidence[:_SHOWN]]
    more = len(found.answer.evidence) - _SHOWN
    if more > 0:
        lines.append(("", f"and {more} places more"))
    lines += [("unknown", why) for why in found.answer.why]
    if (ran := confirmed.on(finding.confirmed, done.version)) is not None:
        lines.append(("when run", ran.words))
    lines += [("upstream", link) for link in finding.references]
    lines.append(("good from", _first_good(found)))
    if found.command:
        lines.append(("patch", f"{finding.fix}: {found.command}"))
    elif finding.fix:
        lines.append(("patch", f"{finding.fix}, but {found.unfit}"))
    if finding.workaround:
        lines.append(("instead", finding.workaround))
    return lines


def _first_good(found: Found) -> str:
    if not found.recorded:
        return "not recorded"
    return found.first_good or "no release yet"


def _notes(done: Audited, console: Console) -> None:
    console.say("")
    console.say(
        f"{len(done.clean)} findings it has not, {done.others} that do not concern this model and place"
    )
    beyond = any(BEYOND in why for found in done.unknown for why in found.answer.why)
    if beyond and done.kind in ("pin", "release"):
        console.say("--native reads the sdist, too, and with it what lies beyond a wheel")
    if done.nearest is not None:
        console.say(_nearest(done.nearest))
    for note in done.notes:
        console.note(f"note: {note}")
    console.note(
        f"{done.origin}: {done.bytes / 1e6:.2f} MB in {done.requests} requests, {done.seconds:.1f} s"
    )


def _nearest(near: Nearest) -> str:
    same = f"of {near.compared} files that were read,"
    if not near.differing:
        return f"nearest release: {near.version}; {same} all are that release's"
    return f"nearest release: {near.version}; {same} these are not: {', '.join(near.differing)}"


def as_dict(done: Audited) -> dict[str, Any]:
    """The audit as an object."""
    return {
        "engine": done.engine,
        "version": done.version,
        "source": {"kind": done.kind, "origin": done.origin},
        "models": list(done.models),
        "target": done.target,
        "card": done.card,
        "findings": [found_dict(found, done.version) for found in (*done.has, *done.unknown)],
        "checkpoint": [vars(fault) for fault in done.faults],
        "nearest": vars(done.nearest) if done.nearest else None,
        "clean": list(done.clean),
        "others": done.others,
        "bytes": done.bytes,
        "requests": done.requests,
        "seconds": done.seconds,
        "notes": list(done.notes),
    }


def found_dict(found: Found, version: str | None) -> dict[str, Any]:
    """One finding that concerns the user, as an object; `run` is what running that release showed."""
    finding = found.finding
    ran = confirmed.on(finding.confirmed, version)
    return {
        "id": finding.id,
        "state": found.answer.state,
        "severity": finding.severity,
        "title": finding.title,
        "what": finding.what,
        "evidence": [vars(place) for place in found.answer.evidence],
        "why": list(found.answer.why),
        "models": list(found.models),
        "when": list(found.when),
        "references": list(finding.references),
        "bug_cases": list(finding.bug_cases),
        "established": finding.established,
        "run": ran.words if ran else None,
        "date": finding.date.isoformat(),
        "first_good": found.first_good,
        "fix": finding.fix,
        "command": found.command,
        "unfit": found.unfit,
        "workaround": finding.workaround,
    }
