"""`dspatch audit`: what is known to be wrong, held against the source of one pin, installation or fork."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import series
from dspatch.audit import finding as findings
from dspatch.audit import judge, nearest, recorded
from dspatch.audit.answer import Answer, State
from dspatch.audit.checkpoint import Checkpoint, Fault
from dspatch.audit.finding import SEVERITIES, Finding, Severity
from dspatch.audit.fixes import Fix, Fixes
from dspatch.audit.nearest import Nearest
from dspatch.audit.place import Place, opened
from dspatch.audit.recorded import Recorded
from dspatch.audit.select import Concern, User, concerning
from dspatch.audit.source import Source
from dspatch.carry.remote.ranges import Traffic
from dspatch.errors import AuditError

if TYPE_CHECKING:
    from dspatch.console import Console
    from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finding that concerns the user, what the source answers, and what helps.

    `first_good` is the next release without it, where that was `recorded`; `command` runs the patch,
    `unfit` says why it cannot.
    """

    finding: Finding
    answer: Answer
    models: tuple[str, ...]
    when: tuple[str, ...]
    first_good: str | None
    recorded: bool = False
    command: str = ""
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
    faults: tuple[Fault, ...] = ()
    nearest: Nearest | None = None
    notes: tuple[str, ...] = ()


def run(
    place: Place, user: User, console: Console, *, checkpoint: Checkpoint | None = None
) -> Audited:
    """Hold every finding that concerns a user against a source.

    Raises `UnknownEngineError`, `UnknownRevisionError`, `EngineEnvironmentError`,
    `PatchFormatError` for a malformed finding, and the errors of reading an index or git.
    """
    start = time.monotonic()
    traffic = Traffic()
    notes = _about(checkpoint)
    with console.working("reading the source"), opened(place, traffic, notes) as source:
        known = series.layered(source.engine)
        every = findings.load_all(source.engine, known.traits)
        concerns = list(concerning(every, user))
        ranges = recorded.load(source.engine)
        answers = _answers(concerns, source, known, ranges)
        near = _nearest(source, concerns, answers, ranges, traffic)
        fixes = Fixes(
            known, source, [m.variant for m in user.models], place.words(source, near),
            _patches(concerns, answers),
        )  # fmt: skip
        found = list(_found(concerns, answers, source, ranges, fixes, place.wanted, user))
    return Audited(
        engine=source.engine,
        version=source.version,
        kind=source.kind,
        origin=source.origin,
        models=tuple(model.variant.name for model in user.models),
        target=user.place,
        card=user.card.name if user.card else None,
        has=tuple(each for each in found if each.answer.state == "yes"),
        unknown=tuple(each for each in found if each.answer.state == "unknown"),
        clean=tuple(each.finding.id for each in found if each.answer.state == "no"),
        others=len(every) - len(concerns),
        bytes=traffic.bytes,
        requests=traffic.requests,
        seconds=time.monotonic() - start,
        faults=checkpoint.faults if checkpoint is not None else (),
        nearest=near,
        notes=tuple(notes),
    )


def _about(checkpoint: Checkpoint | None) -> list[str]:
    if checkpoint is None or not checkpoint.differs:
        return []
    told = "; ".join(checkpoint.differs)
    return [
        f"config.json is that of no published model; nearest to {checkpoint.variant.name}: {told}"
    ]


def _answers(
    concerns: Sequence[Concern], source: Source, known: Series, ranges: Recorded
) -> list[Answer]:
    asked = [concern.finding for concern in concerns]
    if source.kind == "record":
        return [_recorded(each, source, ranges) for each in asked]
    if source.kind == "release":
        judge.fetch(asked, source, known.traits)
    return [each.answer for each in judge.judge(asked, source, known.traits)]


def _recorded(finding: Finding, source: Source, ranges: Recorded) -> Answer:
    """What was recorded of a release that cannot be read now; unknown where nothing was."""
    assert source.version is not None
    state = ranges.state(finding.id, source.version) or "unknown"
    why = ("nothing is recorded of it",) if state == "unknown" else ()
    return Answer(state=state, why=why)


def _patches(concerns: Sequence[Concern], answers: Sequence[Answer]) -> frozenset[str]:
    """The patches that the findings which hold name."""
    pairs = zip(concerns, answers, strict=True)
    named = (concern.finding.fix for concern, answer in pairs if answer.state == "yes")
    return frozenset(name for name in named if name is not None)


def _nearest(
    source: Source,
    concerns: Sequence[Concern],
    answers: Sequence[Answer],
    ranges: Recorded,
    traffic: Traffic,
) -> Nearest | None:
    """For what is no release itself: which it is nearest to, and what differs."""
    if source.kind in ("pin", "release", "record"):
        return None
    states: Mapping[str, State] = {
        concern.finding.id: answer.state for concern, answer in zip(concerns, answers, strict=True)
    }
    return nearest.nearest(source, states, ranges, traffic)


def _found(
    concerns: Sequence[Concern],
    answers: Sequence[Answer],
    source: Source,
    ranges: Recorded,
    fixes: Fixes,
    wanted: Sequence[str],
    user: User,
) -> Iterator[Found]:
    for concern, answer in zip(concerns, answers, strict=True):
        finding = concern.finding
        fix = Fix()
        if finding.fix is not None and answer.state == "yes":
            fix = fixes.fix(finding.fix, _target(finding, user), wanted)
        yield Found(
            finding=finding,
            answer=answer,
            models=concern.models,
            when=concern.when,
            first_good=ranges.first_good(finding.id, source.version),
            recorded=ranges.knows(finding.id),
            command=fix.command,
            unfit=fix.unfit,
        )


def _target(finding: Finding, user: User) -> str | None:
    """The target that a patch must be for: the user's, or the one target that a finding is about."""
    if user.place is not None:
        return user.place
    named = [target for target in finding.applies.targets if target in series.TARGETS]
    return named[0] if len(named) == 1 else None


def check(done: Audited, fail_on: Severity | None, *, strict: bool = False) -> None:
    """Raise `AuditError` when a finding is as grave as `fail_on`.

    One that holds under a condition which the user did not name, or is unknown, counts when `strict`.
    """
    if fail_on is None:
        return
    grave = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    told = [f"{each.title} ({each.severity})" for each in done.faults if each.severity in grave]
    for each in (*done.has, *done.unknown):
        doubts = [*each.when, *(["unknown"] if each.answer.state == "unknown" else [])]
        if each.finding.severity in grave and (strict or not doubts):
            told.append(f"{each.finding.id} ({', '.join([each.finding.severity, *doubts])})")
    if told:
        raise AuditError(
            f"{len(told)} findings are as grave as `{fail_on}`, or graver.",
            why=", ".join(told),
            next="dspatch audit --explain ID says more of one; --fail-on takes another threshold",
        )
