"""What the findings of the audit know of the words that a user wrote: one knowledge for both commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspatch import series
from dspatch.audit import commandline, judge
from dspatch.audit import finding as findings
from dspatch.audit.finding import Finding
from dspatch.audit.source import Source
from dspatch.serve.engines import ahead


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A finding that the source has and that these words bring in; `when` is what else must hold."""

    finding: str
    severity: str
    title: str
    when: str
    workaround: str


def remarks(source: Source, words: Sequence[str]) -> tuple[Remark, ...]:
    """The findings about these words that a source has, the gravest first."""
    traits = series.layered(source.engine).traits
    named = [each for each in findings.load_all(source.engine, traits) if _named(each, words)]
    ahead(source, judge.looks_at(named, traits))
    found = [each for each in named if judge.one(each, source, traits).state == "yes"]
    found.sort(key=lambda each: findings.SEVERITIES.index(each.severity))
    return tuple(_remark(each) for each in found)


def _named(finding: Finding, words: Sequence[str]) -> bool:
    return any(commandline.given(each, words) for each in finding.applies.options)


def _remark(finding: Finding) -> Remark:
    return Remark(
        finding=finding.id,
        severity=finding.severity,
        title=finding.title,
        when="; ".join(_when(finding)),
        workaround=finding.workaround or "",
    )


def _when(finding: Finding) -> Iterator[str]:
    applies = finding.applies
    for what, named in (
        ("model", applies.variants or applies.families), ("fact", applies.facts),
        ("target", applies.targets), ("card", applies.cards),
    ):  # fmt: skip
        if named:
            yield f"{what}: {', '.join(named)}"
