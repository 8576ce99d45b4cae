"""Answers are read into one form, and what cannot be read is told, whatever a server sends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.conformance.api.said import MalformedError, Said, Token, joined

FIELDS = [
    "choices",
    "index",
    "delta",
    "message",
    "text",
    "content",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "id",
    "finish_reason",
    "logprobs",
    "token",
    "logprob",
    "top_logprobs",
    "bytes",
    "tokens",
    "token_logprobs",
    "usage",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), VALUES, VALUES, VALUES)
def test_any_json_is_read_or_told_as_malformed(
    value: dict[str, Any], message: Any, logprobs: Any, usage: Any
) -> None:
    choice = {"index": 0, "message": message, "logprobs": logprobs}
    for answer in (value, {"choices": [choice], "usage": usage}):
        with suppress(MalformedError):
            assert isinstance(joined([answer]), Said)


@pytest.mark.parametrize(
    "changed",
    [
        {"message": {"content": ["a"]}},
        {"message": {"tool_calls": ["a"]}},
        {"message": {"tool_calls": 1}},
        {"text": 1},
        {"logprobs": {"content": [{"token": "a"}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": "-1"}]}},
        {"logprobs": {"content": [{"token": "a", "logprob": -1, "bytes": [300]}]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{"a": None}]}},
    ],
)
def test_a_field_of_another_type_is_told(changed: dict[str, Any]) -> None:
    assert joined([{"choices": [{"index": 0}]}]).only.text == ""
    with pytest.raises(MalformedError, match="cannot be read"):
        joined([{"choices": [{"index": 0, **changed}]}])


def test_usage_that_is_no_object_is_told_and_a_count_that_is_no_number_is_none() -> None:
    with pytest.raises(MalformedError, match="cannot be read"):
        joined([{"choices": [], "usage": "12"}])
    assert joined([{"choices": [], "usage": {"completion_tokens": 3}}]).completion_tokens == 3
    assert joined([{"choices": [], "usage": {"completion_tokens": "3"}}]).completion_tokens is None


def test_tokens_of_chats_and_of_completions_are_the_same() -> None:
    chat = [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}]}]
    text = {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{"a": -1}]}
    for logprobs in ({"content": chat}, text):
        found = joined([{"choices": [{"index": 0, "logprobs": logprobs}]}]).only.tokens
        assert found == (Token(text="a", logprob=-1, top=(("a", -1),)),)
