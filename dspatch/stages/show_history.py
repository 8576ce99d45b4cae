"""A history as ranges by finding, as Markdown, and as the object that --json prints; one finding in full."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch.audit import choice
from dspatch.audit.explain import as_dict as explained_dict
from dspatch.audit.finding import SEVERITIES, Finding
from dspatch.audit.history import Row
from dspatch.carry.matrix import spans
from dspatch.stages.show import whether_written

if TYPE_CHECKING:
    from dspatch.console import Console
    from dspatch.stages.audit_history import Measured


def history(measured: Measured, console: Console) -> None:
    """Every finding with the releases that have it, then each release with its counts."""
    done = measured.history
    rows = [_row(row, done.releases) for row in done.rows]
    console.table(("SEVERITY", "RELEASES THAT HAVE IT", "FINDING", ""), rows)
    if not rows:
        console.say(f"{done.engine}: no finding concerns this model and place")
    console.say("")
    _releases(measured, console)
    _notes(measured, console)
    console.result(as_dict(measured))


def _releases(measured: Measured, console: Console) -> None:
    best = choice.best(measured.standings)
    console.table(
        ("RELEASE", *(each.upper() for each in SEVERITIES), "UNKNOWN", "CONDITIONAL", ""),
        [
            (
                each.version,
                *(str(number or "") for number in (*each.counts, each.unknown, each.conditional)),
                "serves it best" if each == best else "" if each.serves else "does not serve it",
            )
            for each in measured.standings
        ],
    )


def _row(row: Row, releases: tuple[str, ...]) -> tuple[str, str, str, str]:
    finding = row.concern.finding
    having = [version for version, state in row.states.items() if state == "yes"]
    told = spans.runs(having, releases) or "none"
    undecided = [version for version, state in row.states.items() if state == "unknown"]
    told += f" (unknown: {spans.runs(undecided, releases)})" if undecided else ""
    return finding.severity, told, finding.id, "; ".join(row.concern.when)


def _notes(measured: Measured, console: Console) -> None:
    for note in measured.history.notes:
        console.note(f"note: {note}")
    traffic = measured.history.traffic
    console.note(
        f"{len(measured.history.rows)} findings on {len(measured.history.releases)} releases; "
        f"{traffic.bytes / 1e6:.1f} MB in {traffic.requests} requests, {measured.seconds:.1f} s"
    )


def as_dict(measured: Measured) -> dict[str, Any]:
    """The history as an object."""
    done = measured.history
    return {
        "engine": done.engine,
        "releases": list(done.releases),
        "best": best.version if (best := choice.best(measured.standings)) else None,
        "standings": [vars(each) for each in measured.standings],
        "findings": [
            {
                "id": row.concern.finding.id,
                "severity": row.concern.finding.severity,
                "title": row.concern.finding.title,
                "models": list(row.concern.models),
                "when": list(row.concern.when),
                "states": dict(row.states),
            }
            for row in done.rows
        ],
        "bytes": done.traffic.bytes,
        "requests": done.traffic.requests,
        "seconds": measured.seconds,
        "notes": list(done.notes),
    }


def wrote(changed: bool, path: Path, measured: Measured, console: Console) -> None:
    """Whether a file had to be changed."""
    console.say(whether_written(path, changed))
    _notes(measured, console)
    console.result({"path": path, "changed": changed, "history": as_dict(measured)})


def checked(count: int, measured: Measured, console: Console) -> None:
    """That what is recorded is what the releases say."""
    console.say(f"the recorded ranges of {count} findings hold")
    _notes(measured, console)
    console.result({"holds": True, "findings": count, "history": as_dict(measured)})


def explained(finding: Finding, console: Console) -> None:
    """One finding in full."""
    told = explained_dict(finding)
    console.say(f"{finding.id}: {finding.title} ({finding.severity})")
    console.say("")
    console.say(_wrapped(finding.what))
    console.say("")
    applies = "; ".join(f"{key} {', '.join(value)}" for key, value in told["applies"].items())
    lines = [
        ("concerns", applies or "every model, everywhere"),
        ("releases", told["has"] or ("none" if told["has"] == "" else "not measured yet")),
        ("good from", told["first_good"] or "no release yet"),
        *([("patch", finding.fix)] if finding.fix else []),
        *([("instead", finding.workaround)] if finding.workaround else []),
        *(("upstream", link) for link in finding.references),
        *([("cases", ", ".join(finding.bug_cases))] if finding.bug_cases else []),
        ("known by", f"{told['established']}, {told['date']}"),
        *(
            ("seen", f"{each.rev} {'has it' if each.has else 'has it not'}")
            for each in finding.tested
        ),
        *(("run", f"{', '.join(each.revs)}, {each.words}") for each in finding.confirmed),
        *(("not run", f"{', '.join(each.revs)}: {each.why}") for each in finding.unshown),
    ]
    for label, text in lines:
        console.say(f"{label:<10} {text}")
    for heading, key in (("decides where", "decides"), ("has it when", "probe")):
        for number, line in enumerate(told[key]):
            console.say(f"{heading if number == 0 else '':<13} {line}")
    console.result(told)


def _wrapped(text: str, width: int = 100) -> str:
    import textwrap

    return textwrap.fill(text, width)
