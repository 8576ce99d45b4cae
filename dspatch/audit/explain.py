"""One finding in full: what happens, the probe in words, the releases that have it, what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from dspatch import series
from dspatch.audit import finding as findings
from dspatch.audit import recorded
from dspatch.audit.finding import Finding
from dspatch.errors import PatchFormatError

_ESTABLISHED = {
    "run": "seen failing here",
    "read": "read in the source, not run",
    "reported": "reported in a thread, not seen here",
}
_WORDS = {
    "symbol": "defines `{}`", "absent": "does not define `{}`", "contains": "has the code `{}`",
    "lacks": "does not have the code `{}`", "parameter": "takes the parameter `{}`",
    "no-parameter": "takes no parameter `{}`", "entry": "lists `{}`", "no-entry": "does not list `{}`",
    "regex": "matches /{}/", "no-regex": "does not match /{}/", "sha256": "has the sha256 {}",
}  # fmt: skip


def find(name: str) -> Finding:
    """The finding of an id, of whichever engine; raises `PatchFormatError` with the nearest ids."""
    every = {each.id: each for engine in findings.engines() for each in _load(engine)}
    if name in every:
        return every[name]
    near = get_close_matches(name, every, n=3, cutoff=0.3)
    raise PatchFormatError(
        f"there is no finding `{name}`.",
        why=f"nearest: {', '.join(near)}" if near else f"there are {len(every)}",
        next="dspatch audit --all-releases lists them",
    )


def _load(engine: str) -> tuple[Finding, ...]:
    return findings.load_all(engine, series.layered(engine).traits)


def as_dict(finding: Finding) -> dict[str, Any]:
    """All that is known of a finding, as an object."""
    ranges = recorded.load(finding.engine)
    return {
        "id": finding.id,
        "engine": finding.engine,
        "title": finding.title,
        "severity": finding.severity,
        "what": finding.what,
        "applies": {key: list(value) for key, value in vars(finding.applies).items() if value},
        "has": ranges.ranges(finding.id) if ranges.knows(finding.id) else None,
        "first_good": ranges.first_good(finding.id, None),
        "fix": finding.fix,
        "workaround": finding.workaround,
        "references": list(finding.references),
        "bug_cases": list(finding.bug_cases),
        "established": _ESTABLISHED[finding.established],
        "date": finding.date.isoformat(),
        "probe": list(words(finding.probe)),
        "decides": list(words(finding.decides)) if finding.decides else [],
        "tested": [{"rev": each.rev, "has": each.has} for each in finding.tested],
        "confirmed": [
            {**vars(each), "revs": list(each.revs), "date": each.date.isoformat()}
            for each in finding.confirmed
        ],
        "unshown": [{"revs": list(each.revs), "why": each.why} for each in finding.unshown],
    }


def words(question: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """A question in words, a line each, indented by how deep it is nested."""
    pad = "  " * depth
    if "file" in question:
        yield f"{pad}{_file(question)}"
    if "version" in question:
        yield f"{pad}the release is {question['version']}"
    if "trait" in question:
        yield f"{pad}the trait `{question['trait']}` holds"
    for key, text in (("any", "one of these holds:"), ("all", "all of these hold:")):
        if key in question:
            yield f"{pad}{text}"
            for each in question[key]:
                yield from words(each, depth + 1)
    if "not" in question:
        yield f"{pad}this does not hold:"
        yield from words(question["not"], depth + 1)


def _file(question: Mapping[str, Any]) -> str:
    given = question["file"]
    paths = given if isinstance(given, str) else " or ".join(given)
    parts = [
        text.format(" ".join(str(question[key]).split()))
        for key, text in _WORDS.items()
        if key in question
    ]
    return f"{paths} {' and '.join(parts) if parts else 'is there'}"
