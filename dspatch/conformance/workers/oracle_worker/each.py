"""How far off each token is: what a typical one is told by, where rounding has turned routers of some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from . import metrics

Tensors = Mapping[str, Tensor]


def measure(
    expected: Tensors, found: Tensors, logits: Tensor, golden: Tensor, tokens: int
) -> dict[str, Any]:
    """One prompt: lists with a number for each token, to three digits.

    `logits`, `logprob`, `best` and `margin` of the rows that `logits` and `golden` have, the `first` of
    which is that position's; `layer.N` and `final` of the first `tokens`, which both texts share.
    """
    rows = min(tokens, len(expected["ids"]) - 1)
    states = [name for name in found if name.startswith("layer.") or name == "final"]
    own = {
        "logits": metrics.by_row(logits, golden)
        if logits.shape == golden.shape
        else metrics.BROKEN,
        "logprob": metrics.logprob_rows(logits, golden),
        "best": metrics.best_rows(logits, golden),
        "margin": metrics.margin_rows(logits, golden),
        **{name: _state(expected[name][:rows], found[name][:rows]) for name in states},
    }
    # The last token of a text is never read.
    first = len(expected["ids"]) - 1 - len(found["logits"])
    counts = {name: rows if name in states else len(golden) for name in own}
    return {"first": first, **{name: _short(own[name], counts[name]) for name in own}}


def _state(expected: Tensor, found: Tensor) -> Tensor:
    return metrics.by_row(found, expected) if found.shape == expected.shape else metrics.BROKEN


def _short(values: Tensor, count: int) -> list[float]:
    # What cannot be compared as a whole is wrong at every token.
    told = values.tolist() if len(values) == count else [float("inf")] * count
    return [float(f"{value:.3g}") for value in told]
