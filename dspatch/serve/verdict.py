"""What is said of one name that a user gave: whether the release has it, and what to do where it has not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from dspatch.serve.answers import Answer
from dspatch.serve.known import Kind, Known

State = Literal["known", "deprecated", "unknown", "wrong", "undecided", "unchecked"]
FAILING: tuple[State, ...] = ("unknown", "wrong", "undecided")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One name: its state, when it was there, what to say, what to use instead, the nearest that is there.

    `unchecked` is what belongs to nobody's list: another program's variable, a word in front.
    """

    word: str
    state: State
    kind: str
    exists: str = ""
    say: str = ""
    instead: tuple[str, ...] = ()
    nearest: str = ""
    values: tuple[str, ...] = ()
    place: str = ""
    finding: str = ""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What verdicts on missing names rest on: the record of releases, the answers, and the release."""

    known: Known
    answers: Mapping[str, Answer]
    version: str | None

    def missing(
        self, word: str, name: str, kind: Kind, there: Iterable[str], *, whole: bool, what: str
    ) -> Verdict:
        """The verdict on a name that the source has not; `undecided` where not all of it could be read."""
        name = name.replace("_", "-") if name.startswith("--") else name
        answer = self.answers.get(name)
        having = self.known.releases_of(kind, name)
        close = get_close_matches(name, list(there), n=1, cutoff=0.75)
        if not whole and not (answer is not None and answer.fate == "never"):
            return Verdict(
                word=word, state="undecided", kind=what, exists=self.told(kind, name),
                say="not all of the source could be read, so that it may be there", nearest=_first(close),
            )  # fmt: skip
        return Verdict(
            word=word,
            state="unknown",
            kind=what,
            exists=self.told(kind, name) or ("in no release" if self.known.releases else ""),
            say=self._say(answer, having),
            instead=self._instead(answer, there),
            nearest="" if answer is not None and answer.instead else _first(close),
            finding=answer.finding if answer is not None else "",
        )

    def told(self, kind: Kind, name: str) -> str:
        """Since or until when a name was there."""
        return self.known.told(kind, name, self.version)

    def _say(self, answer: Answer | None, having: tuple[str, ...]) -> str:
        if answer is not None:
            return answer.say
        return "" if having or not self.known.releases else "no release that was read has it"

    def _instead(self, answer: Answer | None, there: Iterable[str]) -> tuple[str, ...]:
        """Of the names to use instead, those that the source has."""
        have = set(there)
        return tuple(each for each in answer.instead if _base(each) in have) if answer else ()


def _base(name: str) -> str:
    """The name in words that may go on with a value: `--spec-method mtp`, `A=1`, `--x.y`."""
    first = name.split()[0]
    return first.partition("=")[0]


def _first(items: list[str]) -> str:
    return items[0] if items else ""
