"""From the lines that match to causes in order: what this release, this model and this machine can have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from dspatch.audit import recorded
from dspatch.audit.recorded import Recorded
from dspatch.audit.select import User, concerning
from dspatch.audit.signature import Certainty
from dspatch.serve.doctor.cause import Cause
from dspatch.serve.doctor.checks import CHECKS, Answer
from dspatch.serve.doctor.facts import Facts
from dspatch.serve.doctor.reading import Match, Reading

# Checks that mean something without a line: a missing nvcc or a small /dev/shm is no failure yet.
ALONE = ("torch", "driver")
_LEVELS: tuple[Certainty, ...] = get_args(Certainty)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What is known beside the log: engine and release, who asks, the machine."""

    engine: str | None
    version: str | None
    user: User
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A cause that may stand behind a log, or behind what the machine shows.

    `match` is `None` where the machine alone shows it. `state` is what was recorded of the finding on
    the release. `machine` says what the machine has to say about it.
    """

    cause: Cause
    certainty: Certainty
    match: Match | None = None
    state: str = ""
    first_good: str | None = None
    machine: str = ""
    command: str = ""
    unfit: str = ""

    @property
    def groups(self) -> Mapping[str, str]:
        """What the line states."""
        return self.match.hit.groups if self.match else {}


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A cause that a line matches, and why it cannot be that one."""

    cause: Cause
    match: Match
    why: str


def of_log(reading: Reading, stated: Stated) -> tuple[tuple[Diagnosis, ...], tuple[Dropped, ...]]:
    """The causes of a log, the likeliest first, and those that were ruled out."""
    ranges: dict[str, Recorded] = {}

    def record(engine: str) -> Recorded:
        return ranges.setdefault(engine, recorded.load(engine))

    judged = [_judged(match, stated, record) for match in reading.matches]
    kept = [each for each in judged if isinstance(each, Diagnosis)]
    dropped = tuple(each for each in judged if isinstance(each, Dropped))
    return tuple(_ranked(_preferred(kept))), dropped


def _judged(match: Match, stated: Stated, record: Callable[[str], Recorded]) -> Diagnosis | Dropped:
    """A match as a diagnosis, or why this engine, release, model or machine cannot have it."""
    cause, signature = match.cause, match.hit.sought
    if stated.engine and cause.engines and stated.engine not in cause.engines:
        return Dropped(cause=cause, match=match, why=f"the engine is {stated.engine}")
    answer = _answer(cause, match.hit.groups, stated.facts)
    if answer.holds is False:
        return Dropped(cause=cause, match=match, why=answer.text)
    found = Diagnosis(
        cause=cause,
        certainty="certain" if answer.holds else signature.certainty,
        match=match,
        machine=answer.text,
    )
    return _of_finding(found, match, stated, record) if cause.finding else found


def _answer(cause: Cause, groups: Mapping[str, str], facts: Facts) -> Answer:
    return CHECKS[cause.check](groups, facts) if cause.check else Answer(holds=None, text="")


def _of_finding(
    found: Diagnosis, match: Match, stated: Stated, record: Callable[[str], Recorded]
) -> Diagnosis | Dropped:
    """A finding on the release and for the model that are known; one that cannot hold is dropped."""
    finding = found.cause.finding
    assert finding is not None
    ranges = record(finding.engine)
    state = ranges.state(finding.id, stated.version) if stated.version else None
    if state == "no":
        why = f"{finding.engine} {stated.version} has not got it (those that have: {ranges.ranges(finding.id)})"
        return Dropped(cause=found.cause, match=match, why=why)
    env = stated.facts.environment
    if env is not None and finding.fix in env.patches:
        why = f"the wheel has the patch {finding.fix} built in"
        return Dropped(cause=found.cause, match=match, why=why)
    if not list(concerning([finding], stated.user)):
        why = "it does not concern this model, or not there"
        return Dropped(cause=found.cause, match=match, why=why)
    certainty = found.certainty
    if state is None and certainty == "certain":
        certainty = "likely"
    good = ranges.first_good(finding.id, stated.version)
    return replace(found, state=state or "", certainty=certainty, first_good=good)


def _preferred(found: Sequence[Diagnosis]) -> Iterator[Diagnosis]:
    """Of several that claim one line: what the release is known to have, then what is no general cause."""
    for each in found:
        rivals = [other for other in found if _line(other) == _line(each) and other is not each]
        known = each.state == "yes" or each.cause.finding is None
        if not known and any(other.state == "yes" for other in rivals):
            continue
        if each.cause.part != "general" or not any(other.cause.part == "cause" for other in rivals):
            yield each


def _ranked(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Causes before what follows from them, what is only possible last, then as the log has them."""
    return sorted(
        found,
        key=lambda each: (
            each.cause.part == "symptom", each.certainty == "possible",
            _line(each), _LEVELS.index(each.certainty),
        ),
    )  # fmt: skip


def _line(found: Diagnosis) -> int:
    return found.match.hit.number if found.match else 0


def of_machine(causes: Iterable[Cause], facts: Facts) -> tuple[Diagnosis, ...]:
    """The causes that the machine shows by itself, without a log."""
    found = []
    for cause in causes:
        if cause.check not in ALONE:
            continue
        answer = CHECKS[cause.check]({}, facts)
        if answer.holds:
            found.append(Diagnosis(cause=cause, certainty="certain", machine=answer.text))
    return tuple(found)
