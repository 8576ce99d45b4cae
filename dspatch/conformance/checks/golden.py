"""The engine's numbers are the oracle's: logits, hidden states, the routers' choices."""

from __future__ import annotations

from collections.abc import Iterator

from dspatch.conformance import statistic
from dspatch.conformance.checks.seen import Prompts, Run, Seen, Verdict, unseen
from dspatch.conformance.statistic import rank


def sane(seen: Seen) -> Verdict:
    """The oracle agrees with its own controls, before it judges anybody."""
    controls = seen.measures["sane"]
    worst = max(controls, key=lambda name: rank(controls[name]))
    return Verdict(measured=controls[worst], note=f"worst against {worst}")


def fp32(seen: Seen, limit: float) -> Verdict:
    """Logits and hidden states of every position, prefill and decode, against the oracle's."""
    if not seen.alone:
        return unseen("no prompt was run")
    typical = statistic.narrow("golden.fp32", seen.dtype)
    worst, where = max(medians(seen.alone) if typical else _differences(seen))
    outside = first_outside(seen, limit)
    note = f"first outside the band: {outside}" if outside else f"worst: {where}"
    layers = {len(measures["layers"]) for measures in seen.alone.values()}
    if seen.black_box and layers == {0}:
        return Verdict(measured=worst, note=f"logits alone, as the engine shows no layers; {note}")
    if layers != {seen.config["num_hidden_layers"] + 1}:
        return Verdict(measured=worst, wrong=True, note=f"not every layer was seen; {note}")
    return Verdict(measured=worst, note=note)


def _differences(seen: Seen) -> Iterator[tuple[float, str]]:
    for prompt, measures in seen.alone.items():
        logits = [["logits", measures["prefill_rel"]], ["decode logits", measures["decode_rel"]]]
        for name, value in [*measures["layers"], *logits]:
            yield rank(value), f"{name} of prompt `{prompt}`"


def medians(prompts: Prompts) -> Iterator[tuple[float, str]]:
    """The median over the tokens of all prompts of each layer's state, and of the logits."""
    layers = dict.fromkeys(name for one in prompts.values() for name, _ in one.get("layers", ()))
    for name in [*layers, "logits"]:
        yield statistic.median(tokens(prompts, name)), name


def tokens(prompts: Prompts, name: str) -> list[float | None]:
    """What is known of each token of all prompts under this name; of a prompt without it, that it is none."""
    return [each for one in prompts.values() for each in one["each"].get(name, [None])]


def first_outside(seen: Seen, limit: float) -> str:
    """The first layer, in the model's order, whose hidden state leaves the band on any prompt."""
    if statistic.narrow("golden.fp32", seen.dtype):
        outside = (f"{name} ({v:.1e})" for v, name in medians(seen.alone) if not v <= limit)
        return next(outside, "")
    depth = max((len(measures["layers"]) for measures in seen.alone.values()), default=0)
    for place in range(depth):
        for prompt, measures in seen.alone.items():
            name, value = measures["layers"][place]
            if not value <= limit:
                return f"{name} of prompt `{prompt}` ({value:.1e})"
    return ""


# The runs whose routers are watched: what a router does in one it need not do in another.
WATCHED: tuple[Run, ...] = ("alone", "together", "again", "late", "scored")


def routes(seen: Seen) -> Verdict:
    """Every token goes to the oracle's experts, in every layer with a router, alone, in a batch, read again, late.

    In less than float32, where rounding turns routers and texts part, the worst choice of all: by how much the second
    model, which read the engine's text and went to its experts up to there, prefers an expert that was not chosen.
    """
    narrow = statistic.narrow("golden.routes", seen.dtype)
    ways = {run: _chosen(seen, run, narrow=narrow) for run in WATCHED}
    if ways["alone"] is None:
        return unseen("the engine's routers could not be watched")
    found = [row for rows in ways.values() for row in rows or ()]
    total = sum(tokens for *_, tokens in found)
    hidden = [run for run, rows in ways.items() if rows is None and seen.prompts(run)]
    note = f"{total} choices" + (f", not watched: {', '.join(hidden)}" if hidden else "")
    if narrow:
        worst, where = max((rank(missed), where) for where, missed, *_ in found)
        elsewhere = sum(count for _, _, count, _ in found)
        note = f"worst: {where}; {elsewhere} of {note} are not the best"
        return Verdict(measured=worst, unit="of a score", note=note)
    first = next((f"first: {where}; " for where, _, count, _ in found if count), "")
    return Verdict(measured=sum(count for _, _, count, _ in found), note=f"{first}{note}")


def _chosen(seen: Seen, run: Run, *, narrow: bool) -> list[tuple[str, float, int, int]] | None:
    """Where, how bad, how many and of how many: each layer's choices on each prompt; `None` if not all were watched."""
    rows = []
    for prompt, measures in seen.prompts(run).items():
        # The oracle keeps no experts of the long text; there the second model's count.
        if narrow or run == "late":
            own = measures.get("experts", ())
        else:
            own = [[layer, 0.0, off, of] for layer, off, of in measures["routes"]]
        rows += [(f"layer.{layer} of `{prompt}`, {run}", *rest) for layer, *rest in own]
    sparse = seen.config["num_hidden_layers"] - seen.config["first_k_dense_replace"]
    return rows if rows and len(rows) == sparse * len(seen.prompts(run)) else None


def divergence(seen: Seen) -> Verdict:
    """Mean divergence of the engine's distributions from the oracle's, in nats.

    In less than float32 the median token's.
    """
    if seen.alone and statistic.narrow("logits.kl", seen.dtype):
        measured = statistic.median(tokens(seen.alone, "divergence"))
        return Verdict(measured=measured, note="of all tokens")
    return _worst(seen, "divergence")


def best(seen: Seen) -> Verdict:
    """Log-probabilities of the oracle's twenty best tokens: the 99th percentile of the difference.

    In less than float32 the largest difference of the median token.
    """
    if seen.alone and statistic.narrow("logits.topk", seen.dtype):
        return Verdict(measured=statistic.median(tokens(seen.alone, "best")), note="of all tokens")
    return _worst(seen, "best")


def _worst(seen: Seen, key: str) -> Verdict:
    if not seen.alone:
        return unseen("no prompt was run")
    values = {p: float(m[key]) for p, m in seen.alone.items()}
    prompt = max(values, key=lambda p: rank(values[p]))
    return Verdict(measured=values[prompt], note=f"worst: `{prompt}`")
