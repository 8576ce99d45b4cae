"""`dspatch audit`: what is known to be wrong, held against the source of one pin, installation or fork."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import series, variants
from dspatch.audit import finding as findings
from dspatch.audit import judge, origins, recorded
from dspatch.audit.answer import Answer
from dspatch.audit.finding import SEVERITIES, Finding, Severity
from dspatch.audit.select import Concern, User, concerning
from dspatch.audit.source import Source
from dspatch.carry.ranges import Traffic
from dspatch.errors import AuditError

if TYPE_CHECKING:
    from dspatch.console import Console
    from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the engine's source is: a release, a git revision, a work tree, or a Python's packages."""

    rev: str | None = None
    repo: str | None = None
    env: str | None = None
    native: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finding that concerns the user, what the source answers, and what helps.

    `first_good` is the next release without it; `command` runs the patch, `unfit` says why it cannot.
    """

    finding: Finding
    answer: Answer
    models: tuple[str, ...]
    when: tuple[str, ...]
    first_good: str | None
    command: str | None
    unfit: str = ""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What came of an audit: `has` and `unknown` gravest first, the ids of `clean` ones, and its cost."""

    engine: str
    version: str | None
    kind: str
    origin: str
    models: tuple[str, ...]
    target: str | None
    card: str | None
    has: tuple[Found, ...]
    unknown: tuple[Found, ...]
    clean: tuple[str, ...]
    others: int
    bytes: int
    requests: int
    seconds: float
    notes: tuple[str, ...] = ()


def run(engine: str, place: Place, user: User, console: Console) -> Audited:
    """Hold every finding that concerns a user against a source.

    Raises `UnknownEngineError`, `UnknownRevisionError`, `PatchFormatError` for a malformed finding,
    and the errors of reading an index or git.
    """
    start = time.monotonic()
    traffic = Traffic()
    known = series.layered(engine)
    every = findings.load_all(engine, known.traits)
    concerns = list(concerning(every, user))
    with _opened(engine, place, traffic) as source, console.working(f"auditing {engine}"):
        asked = [concern.finding for concern in concerns]
        if source.kind == "release":
            judge.fetch(asked, source, known.traits)
        answers = [each.answer for each in judge.judge(asked, source, known.traits)]
        found = list(_found(concerns, answers, source, known, place, user))
    return Audited(
        engine=engine,
        version=source.version,
        kind=source.kind,
        origin=source.origin,
        models=tuple(model.variant.name for model in user.models),
        target=user.card.target if user.card else user.target,
        card=user.card.name if user.card else None,
        has=tuple(each for each in found if each.answer.state == "yes"),
        unknown=tuple(each for each in found if each.answer.state == "unknown"),
        clean=tuple(each.finding.id for each in found if each.answer.state == "no"),
        others=len(every) - len(concerns),
        bytes=traffic.bytes,
        requests=traffic.requests,
        seconds=time.monotonic() - start,
    )


@contextmanager
def _opened(engine: str, place: Place, traffic: Traffic) -> Iterator[Source]:
    assert place.rev is not None
    with origins.of_rev(engine, place.rev, traffic, native=place.native) as source:
        yield source


def _found(
    concerns: Sequence[Concern],
    answers: Sequence[Answer],
    source: Source,
    known: Series,
    place: Place,
    user: User,
) -> Iterator[Found]:
    ranges = recorded.load(source.engine)
    for concern, answer in zip(concerns, answers, strict=True):
        finding = concern.finding
        yield Found(
            finding=finding,
            answer=answer,
            models=concern.models,
            when=concern.when,
            first_good=ranges.first_good(finding.id, source.version),
            command=None,
        )


def check(done: Audited, fail_on: Severity | None, *, unknown_too: bool = False) -> None:
    """Raise `AuditError` when a finding is as grave as `fail_on`, or, if so asked, unknown."""
    if fail_on is None:
        return
    grave = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    caught = [each for each in done.has if each.finding.severity in grave]
    caught += [each for each in done.unknown if unknown_too and each.finding.severity in grave]
    if caught:
        raise AuditError(
            f"{len(caught)} findings are as grave as `{fail_on}`, or graver.",
            why=", ".join(f"{each.finding.id} ({each.finding.severity})" for each in caught),
            next=f"dspatch audit --explain {caught[0].finding.id}",
        )


def served(names: Sequence[str]) -> tuple[variants.Variant, ...]:
    """The variants of the given names; none means every variant that is known."""
    if not names:
        return tuple(variants.table().values())
    found = [variants.variant(name) for name in names]
    return tuple({variant.name: variant for variant in found}.values())
