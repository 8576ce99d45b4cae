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

    `logits`, `logprob`, `divergence`, `best` and `margin` of the rows that `logits` and `golden` have, the `first` of
    which is that position's; `layer.N` and `final` of the first `tokens`, which both texts share.
    """
    rows = min(tokens, len(expected["ids"]) - 1)
    states = [name for name in found if name.startswith("layer.") or name == "final"]
    of_logits = {
        "logits": metrics.by_row(logits, golden),
        "logprob": metrics.logprob_rows(logits, golden),
        "divergence": metrics.divergence_rows(logits, golden),
        "best": metrics.best_rows(logits, golden),
        "margin": metrics.margin_rows(logits, golden),
    }
    of_states = {n: metrics.by_row(found[n][:rows], expected[n][:rows]) for n in states}
    # The last token of a text is never read.
    first = len(expected["ids"]) - 1 - len(found["logits"])
    return {
        "first": first,
        **{name: _short(values, len(golden)) for name, values in of_logits.items()},
        **{name: _short(values, rows) for name, values in of_states.items()},
    }


def _short(values: Tensor, count: int) -> list[float]:
    # What cannot be compared as a whole is wrong at every token.
    return metrics.short(values) if len(values) == count else [float("inf")] * count
