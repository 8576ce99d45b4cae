"""Every operation inside a layer gives what the oracle's gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspatch.conformance import statistic
from dspatch.conformance.checks.seen import Prompts, Seen, Verdict, unseen
from dspatch.conformance.faults import Fault
from dspatch.conformance.statistic import rank

# A choice is right or wrong; golden.routes counts them.
CHOICE = "router_choice"
# Checks whose faults every token has.
OF_ALL_TOKENS = ("golden.fp32", "layers.inside", "greedy.forced")


def operations(seen: Seen) -> Verdict:
    """The results of all operations that can be watched, at the positions that the oracle kept.

    In less than float32 the median of these positions, of all prompts together: few are kept of a short one.
    """
    if not seen.alone:
        return unseen("no prompt was run")
    found = list(_values(seen))
    if not found:
        return unseen("no operation of this engine could be watched")
    worst, place, of = max(found)
    operations = len({place for _, place, _ in found})
    note = f"worst: {place}{of}; {operations} operations"
    return Verdict(measured=worst, unit="relative difference", note=note)


def places(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was compared operation by operation on one prompt; nothing, for measures that nobody compared so."""
    return measures.get("places") or {"rows": [], "found": {}, "unobserved": []}


def typical(prompts: Prompts) -> dict[str, float]:
    """How far off each operation is at the median of the positions that were kept of all prompts."""
    found: dict[str, list[float | None]] = {}
    for measures in prompts.values():
        for place, entry in places(measures)["found"].items():
            if not place.endswith(CHOICE):
                found.setdefault(place, []).extend(entry["each"])
    return {place: statistic.median(each) for place, each in found.items() if each}


def _values(seen: Seen) -> Iterator[tuple[float, str, str]]:
    """How far off, which operation, and of which prompt; a median is of them all."""
    if statistic.narrow("layers.inside", seen.dtype):
        yield from ((value, place, "") for place, value in typical(seen.alone).items())
        return
    for prompt, measures in seen.alone.items():
        for place, entry in places(measures)["found"].items():
            if not place.endswith(CHOICE):
                yield rank(entry["relative"]), place, f" of `{prompt}`"


def at(seen: Seen, fault: Fault) -> float | None:
    """How far off the first place of a fault is that was watched, on the prompt where it is most so.

    Of a fault that only some tokens have there is none: a typical token does not show it.
    """
    if fault.caught_by not in OF_ALL_TOKENS:
        return None
    prompts = seen.prompts(fault.run)
    if statistic.narrow("layers.inside", seen.dtype):
        known = typical(prompts)
        return next((known[place] for place in fault.at if place in known), None)
    found = [places(measures)["found"] for measures in prompts.values()]
    for place in (place for place in fault.at if not place.endswith(CHOICE)):
        if off := [rank(one[place]["relative"]) for one in found if place in one]:
            return max(off)
    return None
