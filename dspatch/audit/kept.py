"""What releases answered, kept in the cache: a file a release, an answer's state by the hash of its question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.audit.answer import State
from dspatch.audit.finding import Finding
from dspatch.carry.remote.releases import Release
from dspatch.files import write_atomically
from dspatch.series import digest_of
from dspatch.traits import Trait

# The code that decides an answer.
_CODE = ("astfind", "audit/answer", "audit/judge", "audit/probe", "carry/remote/releasefiles")


def key(finding: Finding, traits: Mapping[str, Trait]) -> str:
    """One hash over all that the state of a finding depends on, but for the release."""
    named = {name: traits[name].question for name in _traits(finding.probe, traits)}
    inputs = [finding.probe, finding.decides, named, _code()]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def read(engine: str, release: Release, *, native: bool) -> dict[str, State]:
    """The states kept of a release, by key; none when they are not kept or were spoilt."""
    try:
        digest, _, body = _path(engine, release, native).read_bytes().partition(b"\n")
    except FileNotFoundError:
        return {}
    if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
        return {}
    content: dict[str, State] = json.loads(body)
    return content


def write(engine: str, release: Release, states: Mapping[str, State], *, native: bool) -> None:
    """Keep the states of a release, those of questions that are asked no more left out."""
    body = json.dumps(states, sort_keys=True).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    write_atomically(_path(engine, release, native), digest + b"\n" + body)


@cache
def _code() -> str:
    return digest_of([paths.PACKAGE / f"{name}.py" for name in _CODE])


def _traits(question: Mapping[str, Any], traits: Mapping[str, Trait]) -> Iterator[str]:
    if "trait" in question:
        yield question["trait"]
        yield from _traits(traits[question["trait"]].question, traits)
    for name in ("any", "all", "first_of"):
        for each in question.get(name, ()):
            yield from _traits(each, traits)
    if "not" in question:
        yield from _traits(question["not"], traits)


def _path(engine: str, release: Release, native: bool) -> Path:
    name = hashlib.sha256(f"{release.inputs} {native}".encode()).hexdigest()[:32]
    return paths.cache() / "audit" / engine / f"{release.version}-{name}.json"
