"""The engine prefers the oracle's tokens, and generates those that it prefers."""

from __future__ import annotations

from dspatch.conformance import statistic
from dspatch.conformance.checks.golden import tokens
from dspatch.conformance.checks.seen import Seen, Verdict, unseen
from dspatch.conformance.statistic import rank

OWN = 0.3  # nats that an engine's own logits may prefer another token by: they may be told in bfloat16


def forced(seen: Seen) -> Verdict:
    """Teacher-forced argmax at every position: the worst margin of a missed one, in nats.

    In less than float32 the mean over all positions, which has 0 where none was missed. A generated token that
    the engine's own logits do not prefer is wrong in every dtype: no other check looks at who picks it.
    """
    if not seen.alone:
        return unseen("no prompt was run")
    missed = sum(measures["argmax_missed"] for measures in seen.alone.values())
    worst = max(rank(measures["worst_missed_margin"]) for measures in seen.alone.values())
    if statistic.narrow("greedy.forced", seen.dtype):
        worst = statistic.mean(tokens(seen.alone, "margin"))
    positions = sum(m["tokens"] - 1 + m["steps"] for m in seen.alone.values())
    broken = [prompt for prompt, m in seen.alone.items() if not m["finite"]]
    note = f"{missed} of {positions} positions missed"
    if broken:
        return Verdict(measured=worst, wrong=True, note=f"{note}; not finite: {', '.join(broken)}")
    if other := [prompt for prompt, m in seen.alone.items() if not m["unchosen"] <= OWN]:
        told = f"generated is what its own logits do not prefer: {', '.join(other)}"
        return Verdict(wrong=True, note=f"{note}; {told}")
    return Verdict(measured=worst, note=note)
