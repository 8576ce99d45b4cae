"""Answers of three states: what is unknown never makes a source clean."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.audit import answer, probe
from dspatch.audit.answer import Answer, Evidence

STATES = ("yes", "no", "unknown")
PLACE = Evidence(file="a.py", line=3)


def of(state: str) -> Answer:
    return {"yes": answer.yes(PLACE), "no": answer.no(PLACE), "unknown": answer.unknown("why")}[
        state
    ]


@pytest.mark.parametrize(("a", "b"), list(product(STATES, STATES)))
def test_every_is_the_least_and_some_the_greatest_of_no_unknown_yes(a: str, b: str) -> None:
    order = ("no", "unknown", "yes")
    least = min(a, b, key=order.index)
    greatest = max(a, b, key=order.index)
    assert answer.every([of(a), of(b)]).state == least
    assert answer.some([of(a), of(b)]).state == greatest


@pytest.mark.parametrize(
    ("state", "opposite"), [("yes", "no"), ("no", "yes"), ("unknown", "unknown")]
)
def test_negation_keeps_what_is_unknown_and_the_places(state: str, opposite: str) -> None:
    negated = answer.negation(of(state))
    assert negated.state == opposite
    assert negated.evidence == of(state).evidence
    assert negated.why == of(state).why


def test_the_places_told_are_those_that_decide() -> None:
    other = Evidence(file="b.py", line=1)
    assert answer.every([of("yes"), answer.no(other), of("unknown")]).evidence == (other,)
    assert answer.some([of("no"), answer.yes(other), of("unknown")]).evidence == (other,)
    assert answer.every([of("yes"), of("unknown")]).why == ("why",)
    assert answer.every([of("yes"), answer.yes(other)]).evidence == (PLACE, other)


def test_one_place_is_told_once() -> None:
    assert answer.every([of("yes"), of("yes")]).evidence == (PLACE,)


def test_a_place_reads_as_one_line() -> None:
    assert str(Evidence(file="a.py", line=3, symbol="C.f", text="x = 1")) == "a.py:3 C.f x = 1"
    assert str(Evidence(file="a.py", text="is not there")) == "a.py is not there"


# -- questions of any depth --------------------------------------------------------------------


class Leaves:
    """A source whose files are there (`y…`), absent (`n…`), or beyond what can be read (`u…`)."""

    version = None

    def __init__(self, resolved: dict[str, bool]) -> None:
        self.resolved = resolved

    def read(self, path: str) -> bytes | None:
        return b"" if path[0] == "y" or self.resolved.get(path) else None

    def beyond(self, path: str) -> bool:
        return path[0] == "u" and path not in self.resolved


LEAVES = st.sampled_from(["y1", "y2", "n1", "n2", "u1", "u2", "u3"]).map(
    lambda name: {"file": name}
)
QUESTIONS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda items: {"any": items}),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: {"all": items}),
        inner.map(lambda item: {"not": item}),
        st.tuples(inner, inner).map(lambda two: {"not": two[0], "all": [two[1]]}),
    ),
    max_leaves=12,
)


def plainly(question: dict[str, Any], known: dict[str, bool]) -> bool:
    """The same question in two-valued logic."""
    results = []
    if "file" in question:
        results.append(question["file"][0] == "y" or known.get(question["file"], False))
    if "any" in question:
        results.append(any(plainly(each, known) for each in question["any"]))
    if "all" in question:
        results.append(all(plainly(each, known) for each in question["all"]))
    if "not" in question:
        results.append(not plainly(question["not"], known))
    return all(results)


@given(question=QUESTIONS, bits=st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_what_is_decided_stays_so_however_the_unknown_turns_out(
    question: dict[str, Any], bits: tuple[bool, bool, bool]
) -> None:
    known = dict(zip(("u1", "u2", "u3"), bits, strict=True))
    before = probe.ask(question, Leaves({}), {})
    after = probe.ask(question, Leaves(known), {})
    assert after.state == ("yes" if plainly(question, known) else "no")
    if before.state != "unknown":
        assert after.state == before.state
    else:
        assert before.why


@given(question=QUESTIONS)
def test_a_question_without_unknowns_has_a_plain_answer(question: dict[str, Any]) -> None:
    if "'u" not in str(question):
        assert probe.ask(question, Leaves({}), {}).state in ("yes", "no")
