"""The cache holds latents only, and every path through it gives the same answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dspatch.conformance import statistic
from dspatch.conformance.checks.seen import Prompts, Seen, Verdict, unseen
from dspatch.conformance.statistic import rank

FEW = 5  # tokens; of fewer, a router that rounding turned may be the middle one
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def latent(seen: Seen) -> Verdict:
    """The engine's own cache layout has one latent and rotary key a token and layer, no heads.

    An indexer adds one key of its own.
    """
    cache = seen.facts.get("cache")
    if not cache:
        return unseen("the engine does not tell its cache layout")
    config = seen.config
    width = config["kv_lora_rank"] + config["qk_rope_head_dim"] + config.get("index_head_dim", 0)
    expected = width * BYTES[seen.dtype] * config["num_hidden_layers"]
    found = cache["bytes_per_token"]
    note = f"{found:.0f} bytes a token, latents take {expected} ({', '.join(cache['kinds'])})"
    return Verdict(measured=abs(found - expected), note=note)


def decode(seen: Seen, limit: float) -> Verdict:
    """Log-probabilities of each generated token, from the paged cache, against the oracle's."""
    if not seen.alone:
        return unseen("no prompt was run")
    for prompt, measures in seen.alone.items():
        # All but the first generated token need a pass of one token over the cache.
        watched = measures["forwards"] or not seen.black_box
        if watched and measures["forwards"].count(1) < measures["steps"] - 1:
            return Verdict(wrong=True, note=f"prompt `{prompt}` was not decoded token by token")
    steps = sum(measures["agreed_steps"] for measures in seen.alone.values())
    total = sum(measures["steps"] for measures in seen.alone.values())
    note = f"{steps} of {total} tokens agree"
    if statistic.narrow("decode.paged", seen.dtype):
        later = {p: after(m, m["each"]["read"] + 1) for p, m in seen.alone.items()}
        return steady(seen, later, limit)
    return Verdict(measured=stepwise(seen.alone, "decode_logprob"), note=note)


def scored(seen: Seen, limit: float) -> Verdict:
    """A text that is generated right after another prompt was read for its logits alone, against the oracle."""
    prompts = seen.prompts("scored")
    if not prompts:
        return seen.absent("scored")
    steps = sum(measures["agreed_steps"] for measures in prompts.values())
    note = f"{steps} of {sum(m['steps'] for m in prompts.values())} tokens agree"
    if said := broken(prompts):
        return Verdict(wrong=True, note=f"{note}; {said}")
    if statistic.narrow("decode.scored", seen.dtype):
        return steady(seen, {prompt: after(one) for prompt, one in prompts.items()}, limit, note)
    return Verdict(measured=stepwise(prompts, "first_step_logprob", "decode_logprob"), note=note)


def chunked(seen: Seen, limit: float) -> Verdict:
    """Prompts that were prefilled in several chunks, against the oracle."""
    if not seen.facts.get("chunked_prefill"):
        return unseen("the engine turned chunked prefill off for this model")
    if not seen.alone:
        return unseen("no prompt was run")
    if seen.black_box and not any(m["forwards"] for m in seen.alone.values()):
        return unseen("the engine does not tell in how many passes it reads a prompt")
    split = {prompt: m for prompt, m in seen.alone.items() if _chunks(m) > 1}
    if not split:
        return Verdict(wrong=True, note="no prompt was prefilled in chunks")
    chunks = max(_chunks(measures) for measures in split.values())
    note = f"{', '.join(split)} in up to {chunks} chunks"
    if statistic.narrow("prefill.chunked", seen.dtype):
        return steady(seen, {prompt: _later(one) for prompt, one in split.items()}, limit, note)
    measured = max(_worst(split, key) for key in ("prefill_logprob", "first_step_logprob"))
    return Verdict(measured=measured, note=note)


def prefix(seen: Seen, limit: float) -> Verdict:
    """Prompts whose prefix came from the cache, against the oracle; without a hit it fails."""
    if not seen.facts.get("prefix_caching"):
        return unseen("the engine turned prefix caching off for this model")
    if not seen.again:
        return unseen("no prompt was run again")
    if seen.black_box and not any(m["told_cached"] for m in seen.again.values()):
        return unseen("the engine does not tell how many tokens came from the cache")
    hits = {prompt: measures for prompt, measures in seen.again.items() if measures["cached"] > 0}
    if not hits:
        return Verdict(wrong=True, note="no prompt found its prefix in the cache")
    cached = sum(measures["cached"] for measures in hits.values())
    note = f"{cached} tokens of {', '.join(hits)} from the cache"
    if said := broken(hits):
        return Verdict(wrong=True, note=f"{note}; {said}")
    if statistic.narrow("prefix.hit", seen.dtype):
        return steady(seen, {prompt: after(one) for prompt, one in hits.items()}, limit, note)
    return Verdict(measured=_logprob(hits), note=note)


def batch(seen: Seen, limit: float) -> Verdict:
    """All prompts in one batch, prefill and decode mixed, against the oracle."""
    if not seen.together:
        return unseen("no batch was run")
    note = f"{len(seen.together)} prompts at once"
    if said := broken(seen.together):
        return Verdict(wrong=True, note=f"{note}; {said}")
    if statistic.narrow("batch.mixed", seen.dtype):
        return steady(seen, {p: after(m) for p, m in seen.together.items()}, limit, note)
    return Verdict(measured=_logprob(seen.together), note=note)


def broken(prompts: Prompts) -> str:
    """Which texts broke off, or have rows that are no numbers: also where the oracle's has parted from them.

    Empty where none has.
    """
    found = [name for name, one in prompts.items() if not one["finite"]]
    return f"broke off, or not finite: {', '.join(found)}" if found else ""


Rows = Mapping[str, Sequence[float | None]]  # of each token, by what is known of it


def steady(seen: Seen, prompts: Mapping[str, Rows], limit: float, note: str = "") -> Verdict:
    """What rounding does not turn: every token by the engine's own experts, a typical one where these are not seen.

    A typical token beside the oracle that is beyond the same limit fails whatever was followed: who goes to
    the engine's experts does not see a router that is wrong in this run alone, nor tokens that are read
    and never given, as the experts of such a run cannot be told apart.
    """
    if seen.black_box:
        return answered(prompts, note)
    found = followed({prompt: each["followed"] for prompt, each in prompts.items()}, note)
    worst, beside = 0.0 if found.unseen else rank(found.measured), _typical(prompts)
    if worst <= limit < beside:
        why = found.unseen or "right by the engine's own experts alone"
        return Verdict(measured=beside, note=f"{why}; the typical token beside the oracle")
    return found


def _typical(prompts: Mapping[str, Rows]) -> float:
    """The median token beside the oracle, generated ones apart from those read; 0 where there are few of both."""
    parts = ([v for one in prompts.values() for v in one[key]] for key in ("read", "logprob"))
    return max((statistic.median(part) for part in parts if len(part) >= FEW), default=0.0)


def answered(prompts: Mapping[str, Rows], note: str = "") -> Verdict:
    """Beside the oracle the median token of each prompt, generated ones apart from those read, and the median prompt.

    A fault of the cache is one of every step. A turned router is one token's, or one text's that parts.
    """
    parts = [[one["read"], one["logprob"]] for one in prompts.values()]
    medians = (
        statistic.median(statistic.median(each) for each in part if each)
        for part in zip(*parts, strict=True)
        if any(part)
    )
    return Verdict(measured=max(medians, default=math.inf), note=note)


def followed(prompts: Mapping[str, Sequence[float | None]], note: str = "") -> Verdict:
    """The worst token beside a model that reads the engine's own text and goes to its experts.

    Unlike the oracle's text this one never parts, and no router that rounding turned is in it, so that one
    wrong token of many is seen in bfloat16, too.
    """
    if not all(prompts.values()):
        return unseen("the engine's routers could not be watched")
    worst, prompt = max((rank(value), p) for p, each in prompts.items() for value in each)
    count = sum(map(len, prompts.values()))
    said = f"worst of {count} tokens: in `{prompt}`"
    return Verdict(measured=worst, note=f"{note}; {said}" if note else said)


def after(measures: Mapping[str, Any], first: int = 0, end: int | None = None) -> Rows:
    """The rows from `first` on: by experts followed, and beside the oracle those `read` and those generated.

    Generated ones of a text that parted beside a model that reads the same, where that was measured: a router that
    rounding turned may part it at once, and its one token would be the typical one.
    """
    each = measures["each"]
    start = max(first, each["read"])
    return {
        "followed": each["followed"][first:end],
        "read": each["logprob"][first : min(each["read"], end or each["read"])],
        "logprob": (each.get("by_text") or each["logprob"])[start:end],
    }


def _later(measures: Mapping[str, Any]) -> Rows:
    """The rows after the tokens of the second chunk and those that follow, and of the first step."""
    each = measures["each"]
    past = max(measures["forwards"][0] - each["first"], 0)
    return after(measures, past, each["read"] + 1)


def _chunks(measures: Mapping[str, Any]) -> int:
    done = 0
    for count, read in enumerate(measures["forwards"], start=1):
        done += read
        if done >= measures["tokens"]:
            return count
    return 0


def _logprob(prompts: Prompts) -> float:
    return stepwise(prompts, "prefill_logprob", "first_step_logprob", "decode_logprob")


def stepwise(prompts: Prompts, *keys: str) -> float:
    """The worst of some measures over the steps at which the texts agree."""
    # Where the texts part, later steps cannot be compared; the lost margin at that step stands in.
    parted = {p: m for p, m in prompts.items() if m["agreed_steps"] < m["steps"]}
    return max([*(_worst(prompts, key) for key in keys), _worst(parted, "worst_missed_margin")])


def _worst(prompts: Prompts, key: str) -> float:
    return max((rank(measures[key]) for measures in prompts.values()), default=0.0)
