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

    In less than float32 each is held against what is right for the engine's own input to it: no error of another
    operation, and no expert that rounding chose, is in it, so that the worst token counts.
    """
    if not seen.alone:
        return unseen("no prompt was run")
    found = list(of(seen.alone, seen.dtype))
    if not found:
        return unseen("no operation of this engine could be watched")
    worst, place, prompt = max(found)
    operations = len({place for _, place, _ in found})
    note = f"worst: {place} of `{prompt}`; {operations} operations"
    return Verdict(measured=worst, unit="relative difference", note=note)


def places(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was compared operation by operation on one prompt; nothing, for measures that nobody compared so."""
    return measures.get("places") or {"rows": [], "found": {}, "unobserved": []}


def of(prompts: Prompts, dtype: str) -> Iterator[tuple[float, str, str]]:
    """How far off each operation is on each prompt: value, operation, prompt; of a router's choice nothing."""
    narrow = statistic.narrow("layers.inside", dtype)
    for prompt, measures in prompts.items():
        for place, entry in places(measures)["found"].items():
            if place.endswith(CHOICE) or (narrow and not entry.get("own")):
                continue
            value = (
                max(map(rank, entry["each"]), default=0.0) if narrow else rank(entry["relative"])
            )
            yield value, place, prompt


def at(seen: Seen, fault: Fault) -> float | None:
    """How far off the first place of a fault is that was watched, on the prompt where it is most so.

    In float32 of a fault that only some tokens have there is none, as all of a prompt are measured together.
    """
    narrow = statistic.narrow("layers.inside", seen.dtype)
    if not narrow and fault.caught_by not in OF_ALL_TOKENS:
        return None
    known: dict[str, float] = {}
    for value, place, _ in of(seen.prompts(fault.run), seen.dtype):
        known[place] = max(value, known.get(place, 0.0))
    return next((known[place] for place in fault.at if place in known), None)
