"""Which token of many a check judges by: the worst one in float32, a typical one where rounding turns routers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# In less than float32 a few tokens in a hundred go to other experts than the oracle's, and these
# alone would decide by the worst token. What is judged there instead, by check; a unit ends with it.
TYPICAL = {
    "golden.fp32": "median token",
    "layers.inside": "median token",
    "logits.topk": "median token",
    "greedy.forced": "mean of all tokens",
    "decode.paged": "median token of the median prompt",
    "prefill.chunked": "median token",
    "prefix.hit": "median token of the median prompt",
    "batch.mixed": "median token of the median prompt",
}


def typical(check: str, dtype: str) -> bool:
    """Whether a check judges by a typical token in this dtype."""
    return dtype != "float32" and check in TYPICAL


def unit(check: str, dtype: str, plain: str) -> str:
    """The unit of a check's measure in a dtype, from that of its worst token."""
    return f"{plain}, {TYPICAL[check]}" if typical(check, dtype) else plain


def of(check: str, dtype: str, unit: str) -> bool:
    """Whether a tolerance in this unit is one of what the check measures in the dtype."""
    return any(map(unit.endswith, TYPICAL.values())) == typical(check, dtype)


def rank(value: float | None) -> float:
    """A measure to take the worst by: one that is missing, or no number, is worse than any other."""
    return math.inf if value is None or math.isnan(value) else float(value)


def median(values: Iterable[float | None]) -> float:
    """The middle value, the larger of two; infinite where one is none, or where there are none.

    A token without a number is no token that rounding sent elsewhere.
    """
    ordered = sorted(map(rank, values))
    if not ordered or math.isinf(ordered[-1]):
        return math.inf
    return ordered[len(ordered) // 2]


def mean(values: Sequence[float | None]) -> float:
    """The mean; infinite where a value is none, or where there are none."""
    ranked = list(map(rank, values))
    return sum(ranked) / len(ranked) if ranked else math.inf
