"""What probes of an engine showed: layers, routers and rotation by themselves, sampling, late tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspatch.conformance import statistic
from dspatch.conformance.checks.cache import Rows, after, broken, steady, stepwise
from dspatch.conformance.checks.seen import Seen, Verdict, unseen
from dspatch.conformance.statistic import rank

MORE_REPEATED = 0.1  # how much larger a share of repeated tokens than the oracle's is wrong


def layers(seen: Seen) -> Verdict:
    """What each layer adds when it is given the oracle's input, over tokens with the oracle's experts."""
    found = seen.probe("local")
    if not found:
        return seen.absent("local")
    worst, prompt, layer = max((rank(v), p, n) for p, n, v, _, _ in found)
    used, total = (sum(row[place] for row in found) for place in (3, 4))
    note = f"worst: layer.{layer} of `{prompt}`; {used} of {total} tokens"
    return Verdict(measured=worst, wrong=2 * used < total, note=note)


def ladder(seen: Seen) -> Verdict:
    """The model cut after each layer: its error there over that of plain torch in the same dtype.

    Both are the median token's, against the oracle, so that error may grow with depth as rounding does.
    """
    found = seen.probe("ladder")
    if not found:
        return seen.absent("ladder")
    ratios = [(rank(got / max(own, 1e-30)), depth) for depth, got, own in found]
    worst, depth = max(ratios)
    curve = ", ".join(f"{got:.1e}" for _, got, _ in found)
    if len(found) != seen.config["num_hidden_layers"]:
        return unseen("the engine could not be cut after every layer")
    note = f"worst: {depth + 1} layers; by depth {curve}"
    return Verdict(measured=worst, unit="times plain torch's own error", note=note)


def replayed(seen: Seen) -> Verdict:
    """The worst token against a float64 model that sends every token to the engine's own experts.

    No turned router is in it, so that what is left is arithmetic alone.
    """
    found = seen.probe("replayed")
    if not found:
        return seen.absent("replayed")
    worst, place = max((rank(value), name) for name, value, _ in found)
    tokens = max(count for _, _, count in found)
    note = f"worst: {place}; {tokens} tokens"
    return Verdict(measured=worst, unit="relative difference", note=note)


def routers(seen: Seen) -> Verdict:
    """Experts and weights of every router for logits and biases of our own, against float64."""
    found = seen.probe("routed")
    if not found:
        return seen.absent("routed")
    worst, kind, layer = max((rank(v), k, n) for k, n, v, *_ in found)
    used = sum(row[3] for row in found)
    # Scores below 1e-45 are no model's; an engine that divides by their sum is told of, not failed.
    broken = "" if all(row[5] for row in found) else "; not finite where all scores vanish"
    note = f"worst: layer.{layer}, bias {kind}; {used} choices{broken}"
    return Verdict(measured=worst, wrong=not used, note=note)


def products(seen: Seen) -> Verdict:
    """Products of quantised projections with one row, few and many, against float64 of what is stood for."""
    found = seen.probe("multiplied")
    if not found:
        return seen.absent("multiplied")
    worst, name = max((rank(value), name) for name, value in found)
    return Verdict(measured=worst, note=f"worst: {name}; {len(found)} projections")


def rotation(seen: Seen) -> Verdict:
    """The rotation at positions as far as the engine's table goes, against float64."""
    found = seen.probe("turned")
    if not found:
        return seen.absent("turned")
    worst, position = max((rank(value), position) for position, value in found)
    last = max(position for position, _ in found)
    return Verdict(measured=worst, note=f"worst at {position}; {len(found)} positions to {last}")


def late(seen: Seen, limit: float) -> Verdict:
    """Log-probabilities of many more generated tokens, and no more repetition than the oracle's.

    In less than float32 the text may be another than the oracle's, and its repetition says nothing.
    """
    prompts = seen.prompts("late")
    if not prompts:
        return seen.absent("late")
    if said := broken(prompts):
        return Verdict(wrong=True, note=said)
    if statistic.narrow("decode.late", seen.dtype):
        return steady(seen, {prompt: _latest(one) for prompt, one in prompts.items()}, limit)
    one = next(iter(prompts.values()))
    own, wanted = one["repeated"], one["expected_repeated"]
    note = f"{one['agreed_steps']} of {one['steps']} tokens agree, {own:.0%} repeated"
    measured = stepwise(prompts, "first_step_logprob", "decode_logprob")
    return Verdict(measured=measured, wrong=own > wanted + MORE_REPEATED, note=note)


def _latest(measures: Mapping[str, Any]) -> Rows:
    """The rows of a long text; of an engine that shows no experts those of its own text's second half."""
    rows, own = after(measures), measures["each"].get("by_text", ())
    return {**rows, "logprob": own[len(own) // 2 :]} if own else rows


def passkey(seen: Seen) -> Verdict:
    """What stands far back in a long text is found, by its distance and by what stands before it."""
    found = seen.probe("passkey")
    if not found:
        return seen.absent("passkey")
    worst, name, length = max((rank(value), each, length) for each, value, *_, length in found)
    missed = [n for n, _, right, tokens, _ in found if right < tokens]
    said = f"lost: {', '.join(missed)}" if missed else f"worst: {name}"
    return Verdict(measured=worst, note=f"{said}; {len(found)} of a text of {length} tokens")


def distribution(seen: Seen) -> Verdict:
    """Tokens drawn under temperature and top-p are distributed as the engine's own logits ask for."""
    found = seen.probe("sampled")
    if not found:
        return seen.absent("sampled")
    note = f"{found['drawn']} tokens drawn of {found['possible']} that can be"
    return Verdict(measured=found["deviation"], wrong=not found["varied"], note=note)


def seeds(seen: Seen) -> Verdict:
    """A seed gives the same tokens again."""
    found = seen.probe("sampled")
    if not found:
        return seen.absent("sampled")
    return Verdict(
        measured=0 if found["repeated"] else 1, note=f"{found['twice']} tokens drawn twice"
    )


def selfkl(seen: Seen) -> Verdict:
    """Tokens that were drawn step by step have the same probability when they are read as a prompt.

    The mean of all, in less than float32 the median token.
    """
    found = seen.probe("selfkl")
    if found is None:
        return seen.absent("selfkl")
    typical = statistic.narrow("inv.selfkl", seen.dtype)
    measured = statistic.median(found) if typical else statistic.mean(found)
    return Verdict(measured=measured, note=f"{len(found)} tokens")
