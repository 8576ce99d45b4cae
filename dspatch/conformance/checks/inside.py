"""Every operation inside a layer gives what the oracle's gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.conformance import statistic
from dspatch.conformance.checks.seen import Seen, Verdict, unseen
from dspatch.conformance.faults import Fault
from dspatch.conformance.statistic import rank

# A choice is right or wrong; golden.routes counts them.
CHOICE = "router_choice"
# Checks whose faults every token has.
OF_ALL_TOKENS = ("golden.fp32", "layers.inside", "greedy.forced")


def operations(seen: Seen) -> Verdict:
    """The results of all operations that can be watched, at the positions that the oracle kept."""
    if not seen.alone:
        return unseen("no prompt was run")
    found = list(_values(seen))
    if not found:
        return unseen("no operation of this engine could be watched")
    worst, place, prompt = max(found)
    operations = len({place for _, place, _ in found})
    note = f"worst: {place} of `{prompt}`; {operations} operations"
    return Verdict(measured=worst, unit="relative difference", note=note)


def places(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was compared operation by operation on one prompt; nothing, for measures that nobody compared so."""
    return measures.get("places") or {"rows": [], "found": {}, "unobserved": []}


def value(entry: Mapping[str, Any], dtype: str) -> float:
    """How far off one operation is: over all positions, or at the median one."""
    return rank(entry["typical" if statistic.typical("layers.inside", dtype) else "relative"])


def _values(seen: Seen) -> Iterator[tuple[float, str, str]]:
    for prompt, measures in seen.alone.items():
        for place, entry in places(measures)["found"].items():
            if not place.endswith(CHOICE):
                yield value(entry, seen.dtype), place, prompt


def at(seen: Seen, fault: Fault) -> float | None:
    """How far off the first place of a fault is that was watched, on the prompt where it is most so.

    Of a fault that only some tokens have there is none: a typical token does not show it.
    """
    if fault.caught_by not in OF_ALL_TOKENS:
        return None
    found = [places(measures)["found"] for measures in seen.prompts(fault.run).values()]
    for place in (place for place in fault.at if not place.endswith(CHOICE)):
        if known := [value(one[place], seen.dtype) for one in found if place in one]:
            return max(known)
    return None
