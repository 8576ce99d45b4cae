"""What is drawn of a run: the error by depth, and how many log-probabilities are off by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dspatch.conformance import statistic
from dspatch.conformance.checks import golden, inside
from dspatch.conformance.checks.seen import Seen
from dspatch.conformance.report import Curves
from dspatch.conformance.statistic import rank


def of(seen: Seen) -> Curves | None:
    """The curves of one model; `None` for one that was not run.

    At each depth the worst prompt, in less than float32 the median token.
    """
    if not seen.alone:
        return None
    counted = [m["logprob_errors"] for m in seen.alone.values() if m.get("logprob_errors")]
    return Curves(
        variant=seen.variant,
        depths=tuple(_depths(seen)),
        logprob_errors=tuple(map(sum, zip(*counted, strict=True))),
    )


def _depths(seen: Seen) -> Iterator[tuple[str, float]]:
    places = [inside.places(measures)["found"] for measures in seen.alone.values()]
    if embedded := [found["embed"]["relative"] for found in places if "embed" in found]:
        yield "embed", _worst(embedded)
    if statistic.narrow("golden.fp32", seen.dtype):
        yield from ((name, value) for value, name in golden.medians(seen.alone))
        return
    rows = [m["layers"] for m in seen.alone.values()]
    for own in zip(*rows, strict=False):
        yield str(own[0][0]), _worst([value for _, value in own])
    logits = [m[key] for m in seen.alone.values() for key in ("prefill_rel", "decode_rel")]
    yield "logits", _worst([value for value in logits if value is not None])


def _worst(values: list[float]) -> float:
    return max(map(rank, values), default=math.inf)
