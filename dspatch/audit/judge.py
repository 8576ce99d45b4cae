"""Findings held against a source: which it has, which it has not, and which cannot be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dspatch.audit import answer, probe
from dspatch.audit.answer import Answer
from dspatch.audit.finding import Finding
from dspatch.audit.source import Source, read_together
from dspatch.traits import Trait


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A finding and what a source answers to its probe."""

    finding: Finding
    answer: Answer


def judge(
    findings: Iterable[Finding], source: Source, traits: Mapping[str, Trait]
) -> tuple[Judged, ...]:
    """Ask a source about each finding, in their order. Raises what reading the source raises."""
    return tuple(Judged(finding=each, answer=one(each, source, traits)) for each in findings)


def one(finding: Finding, source: Source, traits: Mapping[str, Trait]) -> Answer:
    """What a source answers to one finding's probe; unknown where `decides` does not hold."""
    if finding.decides is not None:
        decides = probe.ask(finding.decides, source, traits)
        if decides.state != "yes":
            told = "; ".join([*decides.why, *map(str, decides.evidence)])
            return answer.unknown(f"the code that would show it is not there: {told}")
    return probe.ask(finding.probe, source, traits)


def fetch(findings: Sequence[Finding], source: Source, traits: Mapping[str, Trait]) -> None:
    """Read at once every file that the findings may look at, so that each costs no round trip."""
    read_together(source, looks_at(findings, traits))


def looks_at(findings: Iterable[Finding], traits: Mapping[str, Trait]) -> list[str]:
    """Every file that findings may look at, in order of name."""
    questions = [q for each in findings for q in (each.probe, each.decides) if q is not None]
    return sorted({path for question in questions for path in probe.files(question, traits)})
