"""What releases answered, kept in the cache: a file a release, an answer's state by the hash of its question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from dspatch import paths
from dspatch.audit.answer import State
from dspatch.audit.finding import Finding
from dspatch.carry.remote import releasestore
from dspatch.carry.remote.releases import Release
from dspatch.series import digest_of
from dspatch.traits import Trait, rests_on

# The code that decides an answer.
_CODE = (
    "astfind",
    "audit/answer",
    "audit/judge",
    "audit/probe",
    "carry/remote/releasefiles",
    "syntax",
)


def key(finding: Finding, traits: Mapping[str, Trait]) -> str:
    """One hash over all that the state of a finding depends on, but for the release."""
    questions = [finding.probe, *([finding.decides] if finding.decides is not None else [])]
    named = {name: traits[name].question for name in rests_on(questions, traits)}
    inputs = [finding.probe, finding.decides, named, _code()]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def read(engine: str, release: Release, *, native: bool) -> dict[str, State]:
    """The states kept of a release, by key; none when they are not kept or were spoilt."""
    return releasestore.read(_path(engine, release, native))


def write(engine: str, release: Release, states: Mapping[str, State], *, native: bool) -> None:
    """Keep the states of a release, by key, in the place of those that were kept."""
    releasestore.write(_path(engine, release, native), dict(sorted(states.items())))


@cache
def _code() -> str:
    return digest_of([paths.PACKAGE / f"{name}.py" for name in _CODE])


def _path(engine: str, release: Release, native: bool) -> Path:
    return releasestore.path("audit", engine, release, f"{release.inputs} {native}")
