"""Texts for parsers, the ways in which they are cut, and what is said of a parse that is not right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.conformance.api import parsers, texts
from dspatch.conformance.api.texts import Text
from dspatch.engines.workers.parser_worker import cuts

TEXTS = texts.every()


@given(st.text(max_size=40), st.integers(0, 9))
def test_every_way_of_cutting_keeps_tokens_and_whole_characters(text: str, seed: int) -> None:
    text = text.encode(errors="ignore").decode()
    spelled = [bytes([byte]) for byte in text.encode()]
    ids = list(range(len(spelled)))
    for places in cuts.ways(len(ids), 4, seed):
        pieces = cuts.pieces(ids, spelled, places)
        assert "".join(piece.text for piece in pieces) == text
        assert [number for piece in pieces for number in piece.ids] == ids


def test_the_ways_hold_each_place_alone_and_token_by_token() -> None:
    found = list(cuts.ways(9, 4, 0))
    assert {(place,) for place in range(1, 9)} <= set(found)
    assert {(), tuple(range(1, 9))} <= set(found)


def test_texts_hold_each_format_reasoning_and_calls() -> None:
    names = [(text.check, text.name) for text in TEXTS]
    assert len(set(names)) == len(names)
    assert {text.check for text in TEXTS} == {
        *(f"parser.tools.{name}" for name in texts.formats()["tools"]),
        *(f"parser.reasoning.{name}" for name in texts.formats()["reasoning"]),
    }


def right(text: Text) -> dict[str, Any]:
    calls = [[name, json.dumps(value)] for name, value in text.calls]
    return {"reasoning": text.reasoning, "content": text.content, "calls": calls}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text.check} {text.name}")
def test_a_right_parse_is_true_and_each_part_of_it_counts(text: Text) -> None:
    assert parsers.untrue(text, right(text)) == ""
    assert "reasoning" in parsers.untrue(text, {**right(text), "reasoning": "x"})
    assert "content" in parsers.untrue(text, {**right(text), "content": "x"})
    assert "calls" in parsers.untrue(text, {**right(text), "calls": [["f", "{}"]]})


def row(text: Text, **changed: Any) -> tuple[Text, dict[str, Any]]:
    found = {"whole": right(text), "tried": 9, "different": 0, "single": True, "first": []}
    return text, {**found, **changed}


def test_a_result_tells_whole_faults_streams_and_what_could_not_run() -> None:
    text = next(text for text in TEXTS if text.calls)
    assert parsers.result("p", "m", [row(text)]).status == "pass"
    lost = {"pieces": ["a", "b"], "said": {**right(text), "calls": []}}
    streams = parsers.result("p", "m", [row(text, different=2, single=False, first=[lost])])
    assert streams.status == "fail"
    assert f"token by token {text.name}" in streams.note
    whole = parsers.result("p", "m", [row(text, whole={**right(text), "calls": []})])
    assert whole.status == "fail"
    assert parsers.result("p", "m", [(text, {"error": "no such parser"})]).status == "not-shown"
    assert parsers.result("p", "m", [row(text), (text, {"error": "it broke"})]).status == "fail"
