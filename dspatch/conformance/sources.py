"""Ask an engine's own source whether it has a finding of the audit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dspatch import series
from dspatch.audit import environment, finding, judge
from dspatch.audit.finding import Finding
from dspatch.audit.source import Source
from dspatch.conformance.causes import Ask, Standing, unasked
from dspatch.errors import DspatchError
from dspatch.traits import Trait

STATES: dict[str, Standing] = {"yes": "confirmed", "no": "ruled out", "unknown": "open"}


def asked_of(python: Path, engine: str) -> Ask:
    """Put findings to what `python` has installed; where it cannot be read, they stay open."""
    opened = cache(_open)

    def ask(name: str) -> tuple[Standing, str]:
        try:
            source, findings, traits = opened(python, engine)
            if name not in findings:
                return "ruled out", f"it is none of {engine}'s"
            answer = judge.one(findings[name], source, traits)
        except (DspatchError, OSError):
            return unasked(name)
        return STATES[answer.state], ", ".join(map(str, answer.evidence or answer.why))

    return ask


def _open(python: Path, engine: str) -> tuple[Source, dict[str, Finding], dict[str, Trait]]:
    traits = dict(series.layered(engine).traits)
    found = finding.load_all(engine, traits)
    return environment.of_environment(str(python), engine), {f.id: f for f in found}, traits
