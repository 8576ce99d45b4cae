"""What a check judges by: the worst token beside the oracle in float32, what rounding does not turn in less."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# In less than float32 a few tokens in a hundred go to other experts than the oracle's, and these
# alone would decide by the worst token. What is judged there instead, by check; a unit ends with it.
FOLLOWED = "worst token, text and experts followed"
NARROW = {
    "golden.fp32": "median token",
    "golden.routes": "worst choice, text and experts followed",
    "layers.inside": "times plain torch's, worst token, given the engine's own input",
    "logits.kl": "median token",
    "logits.topk": "median token",
    "greedy.forced": "mean of all tokens",
    "decode.paged": FOLLOWED,
    "decode.late": FOLLOWED,
    "decode.scored": FOLLOWED,
    "inv.selfkl": "median token",
    "prefill.chunked": FOLLOWED,
    "prefix.hit": FOLLOWED,
    "batch.mixed": FOLLOWED,
}
# Of an engine that shows nothing inside, whose experts nobody can go to; its limits are those of `cuda-answers`, say.
ANSWERED = "median token of the median prompt"
BY_ANSWERS = tuple(name for name, what in NARROW.items() if what == FOLLOWED)
ANSWERS = "-answers"
# What is judged in every dtype, of a check that once judged something else.
ALWAYS = {"sampling.distribution": "by the engine's own logits"}


def narrow(check: str, dtype: str) -> bool:
    """Whether a check judges something else in this dtype than in float32."""
    return dtype != "float32" and check in NARROW


def blind(check: str, dtype: str) -> bool:
    """Whether an engine that shows nothing inside is judged by something else than others are."""
    return dtype != "float32" and check in BY_ANSWERS


def judged(check: str, dtype: str, device: str = "cpu") -> str:
    """What the unit of a check's measure ends with in this dtype; empty where the unit alone says it."""
    if device.endswith(ANSWERS):
        return ANSWERED
    return NARROW[check] if narrow(check, dtype) else ALWAYS.get(check, "")


def unit(check: str, dtype: str, plain: str, device: str = "cpu") -> str:
    """The unit of a check's measure in a dtype, from that of its worst token."""
    end = judged(check, dtype, device)
    return plain if plain.endswith(end) else f"{plain}, {end}"


def of(check: str, dtype: str, unit: str, device: str = "cpu") -> bool:
    """Whether a tolerance in this unit is one of what the check measures in the dtype."""
    ends = {*NARROW.values(), *ALWAYS.values(), ANSWERED}
    return {end for end in ends if unit.endswith(f", {end}")} == {judged(check, dtype, device)} - {
        ""
    }


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
