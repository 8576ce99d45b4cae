"""Whose token each row of a pass is, when requests share passes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.engines.workers.batches import StrayRowError, rows_of

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@given(LENGTHS, st.integers(1, 16), st.integers(0, 1 << 32))
def test_every_row_finds_its_text_however_passes_are_cut(
    lengths: list[int], budget: int, seed: int
) -> None:
    texts = {f"{n}": [*range(100 * n, 100 * n + length)] for n, length in enumerate(lengths)}
    passes = scheduled(texts, budget, random.Random(seed))
    found = rows_of(passes, texts)
    ids = [token for one, _ in passes for token in one]
    assert {name: [ids[row] for row in rows] for name, rows in found.items()} == texts


def scheduled(
    texts: dict[str, list[int]], budget: int, dice: random.Random
) -> list[tuple[list[int], list[int]]]:
    """Passes of at most `budget` tokens, in which requests stand in any order."""
    done, passes = dict.fromkeys(texts, 0), []
    while any(done[name] < len(text) for name, text in texts.items()):
        ids: list[int] = []
        positions: list[int] = []
        for name in dice.sample(sorted(texts), len(texts)):
            end = min(done[name] + dice.randint(0, budget - len(ids)), len(texts[name]))
            ids += texts[name][done[name] : end]
            positions += range(done[name], end)
            done[name] = end
        passes.append((ids, positions))
    return passes


def test_a_text_that_goes_on_as_another_begins_takes_none_of_its_rows() -> None:
    # The second request stands behind the first, and begins with the token that the first will generate.
    passes = [([5, 6, 9, 8], [0, 1, 0, 1]), ([9, 7], [2, 2])]
    assert rows_of(passes, {"a": [5, 6, 9], "b": [9, 8, 7]}) == {"a": [0, 1, 4], "b": [2, 3, 5]}


def test_a_request_of_one_token_before_one_that_goes_on_is_told_by_the_tokens() -> None:
    passes = [([5, 1, 2], [0, 0, 1]), ([6, 3], [1, 2])]
    assert rows_of(passes, {"a": [5, 6], "b": [1, 2, 3]}) == {"a": [0, 3], "b": [1, 2, 4]}


@pytest.mark.parametrize("passes", [[([7], [0])], [([5], [1])], [([5, 5], [0, 0])]])
def test_a_row_that_is_nobody_s_is_an_error(passes: Any) -> None:
    with pytest.raises(StrayRowError, match="nobody's"):
        rows_of(passes, {"a": [5, 6]})


def test_rows_of_a_batch_are_told_apart_and_those_computed_ahead_are_nobodys() -> None:
    texts = {"a": [1, 2, 3, 7], "b": [1, 2, 4, 8]}
    passes = [([1, 2, 3, 1, 2, 4], [0, 1, 2, 0, 1, 2]), ([8, 7], [3, 3]), ([5, 6], [4, 4])]
    assert rows_of(passes, texts, ahead=True) == {"a": [0, 1, 2, 7], "b": [3, 4, 5, 6]}
    assert rows_of([([9], [0])], texts, ahead=True) == {"a": [], "b": []}
