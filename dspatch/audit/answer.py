"""An answer of three states, with the places in the source that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["yes", "no", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A place in an engine's source: `line` is 0 where the whole file, or its absence, is meant."""

    file: str
    line: int = 0
    symbol: str = ""
    text: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return " ".join(part for part in (place, self.symbol, self.text) if part)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a source answers to a question; `why` says what made it unknown."""

    state: State
    evidence: tuple[Evidence, ...] = ()
    why: tuple[str, ...] = ()


def yes(*evidence: Evidence) -> Answer:
    """It holds, as these places show."""
    return Answer(state="yes", evidence=evidence)


def no(*evidence: Evidence) -> Answer:
    """It does not hold, as these places show."""
    return Answer(state="no", evidence=evidence)


def unknown(why: str) -> Answer:
    """It cannot be decided, and why not."""
    return Answer(state="unknown", why=(why,))


def negation(answer: Answer) -> Answer:
    """The opposite; unknown stays unknown."""
    opposite: dict[State, State] = {"yes": "no", "no": "yes", "unknown": "unknown"}
    return Answer(state=opposite[answer.state], evidence=answer.evidence, why=answer.why)


def every(answers: Sequence[Answer]) -> Answer:
    """Yes when all say yes; no when one says no, whatever is unknown beside it."""
    return _first(answers, "no") or _first(answers, "unknown") or _joined("yes", answers)


def some(answers: Sequence[Answer]) -> Answer:
    """Yes when one says yes, whatever is unknown beside it; no when all say no."""
    return _first(answers, "yes") or _first(answers, "unknown") or _joined("no", answers)


def _first(answers: Sequence[Answer], state: State) -> Answer | None:
    """The answers of one state, joined, where there are any."""
    found = [answer for answer in answers if answer.state == state]
    return _joined(state, found) if found else None


def _joined(state: State, answers: Sequence[Answer]) -> Answer:
    evidence = dict.fromkeys(each for answer in answers for each in answer.evidence)
    why = dict.fromkeys(each for answer in answers for each in answer.why)
    return Answer(state=state, evidence=tuple(evidence), why=tuple(why))
