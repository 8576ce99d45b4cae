"""The keys that each token attends to are those that the oracle's indexer chooses."""

from __future__ import annotations

from dspatch.conformance.checks.seen import Seen, Verdict, unseen
from dspatch.conformance.statistic import rank


def choices(seen: Seen) -> Verdict:
    """By how much the oracle's scores prefer a key that was not chosen, worst token of any layer.

    Equal sets give 0, keys that rounding could swap next to nothing, and a later key, too few or
    too many infinity.
    """
    found = [(prompt, *row) for prompt, m in seen.alone.items() for row in m["choices"]]
    layers: int = seen.config["num_hidden_layers"]
    if len(found) != layers * len(seen.alone) or not found:
        return unseen("the engine's indexers could not be watched")
    worst, layer, prompt = max((rank(worst), layer, prompt) for prompt, layer, worst, _, _ in found)
    differing, total = (sum(row[place] for row in found) for place in (3, 4))
    note = f"worst: layer.{layer} of `{prompt}`; " if differing else ""
    return Verdict(measured=worst, note=f"{note}{differing} of {total} sets differ")
