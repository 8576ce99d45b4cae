"""Small pure measures between two tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BROKEN = torch.tensor([float("inf")], dtype=torch.float64)


def relative(measured: Tensor, expected: Tensor) -> float:
    """1 - 2<x,y>/(<x,x>+<y,y>) in float64: 0 when equal, 1 when unrelated, inf when broken."""
    x, y = measured.double(), expected.double()
    if x.shape != y.shape or not bool(torch.isfinite(x).all()):
        return float("inf")
    # As |x-y|² over the same sum: the textbook form loses everything below 1e-16 to cancellation.
    return float((x - y).square().sum() / (x.square().sum() + y.square().sum()).clamp_min(1e-300))


def restored(
    expected: Mapping[str, Tensor], found: dict[str, Tensor], stretch: float
) -> dict[str, Tensor]:
    """The states of the stream as they would be undivided, where that is nearer to the oracle's."""
    first = found.get("layer.0")
    if stretch == 1.0 or first is None:
        return found
    wanted = expected["layer.0"][: len(first)]
    first = first[: len(wanted)]
    if relative(first * stretch, wanted) >= relative(first, wanted):
        return found
    return {
        name: value.float() * stretch if name.startswith("layer.") else value
        for name, value in found.items()
    }


def by_row(measured: Tensor, expected: Tensor) -> Tensor:
    """`relative` of each row, (rows,) in float64; one inf where the shapes differ."""
    if measured.shape != expected.shape:
        return BROKEN
    x, y = measured.double(), expected.double()
    total = (x.square() + y.square()).sum(-1).clamp_min(1e-300)
    rows = (x - y).square().sum(-1) / total
    return rows.nan_to_num(nan=float("inf"), posinf=float("inf"))


def short(rows: Tensor) -> list[float]:
    """The numbers to three digits, which is what is kept of each token."""
    return [float(f"{value:.3g}") for value in rows.tolist()]


def median(rows: Tensor) -> float:
    """The middle one of such numbers, the larger of two; inf where one is, or where there are none.

    A row that is broken is none that rounding has turned.
    """
    whole = len(rows) > 0 and bool(rows.isfinite().all())
    return float(rows.sort()[0][len(rows) // 2]) if whole else float("inf")


def _broken(measured: Tensor, expected: Tensor) -> bool:
    """Whether logits cannot be held against those of the oracle."""
    return measured.shape != expected.shape or not bool(torch.isfinite(measured).all())


def _logprobs(measured: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    return measured.double().log_softmax(-1), expected.double().log_softmax(-1)


def worst_logprob(measured: Tensor, expected: Tensor) -> float:
    """Largest absolute difference in log-probability over all positions and tokens, in nats."""
    return _largest(logprob_rows(measured, expected))


def logprob_rows(measured: Tensor, expected: Tensor) -> Tensor:
    """The same of each position, (rows,); one inf where logits cannot be held against the oracle's."""
    if _broken(measured, expected):
        return BROKEN
    ours, theirs = _logprobs(measured, expected)
    return (ours - theirs).abs().amax(-1)


def _largest(rows: Tensor) -> float:
    return float(rows.max()) if rows.numel() else 0.0


def divergence(measured: Tensor, expected: Tensor) -> float:
    """Mean Kullback-Leibler divergence of the measured distributions from the expected ones, in nats."""
    return float(divergence_rows(measured, expected).mean().clamp_min(0.0))


def divergence_rows(measured: Tensor, expected: Tensor) -> Tensor:
    """The divergence at each position, (rows,); one inf for broken logits."""
    if _broken(measured, expected):
        return BROKEN
    ours, theirs = _logprobs(measured, expected)
    return (theirs.exp() * (theirs - ours)).sum(-1)


def best(measured: Tensor, expected: Tensor) -> float:
    """The 99th percentile of the difference in log-probability of each position's best tokens, in nats."""
    return float(_best(measured, expected).flatten().quantile(0.99))


def best_rows(measured: Tensor, expected: Tensor) -> Tensor:
    """The largest such difference of each position, (rows,); one inf for broken logits."""
    return _best(measured, expected).amax(-1)


def _best(measured: Tensor, expected: Tensor, count: int = 20) -> Tensor:
    if _broken(measured, expected):
        return BROKEN[:, None]
    ours, theirs = _logprobs(measured, expected)
    values, tokens = theirs.topk(count)
    return (ours.gather(-1, tokens) - values).abs()


def repeated(tokens: list[int], width: int = 4) -> float:
    """The share of runs of `width` tokens that were there before."""
    runs = [tuple(tokens[i : i + width]) for i in range(len(tokens) - width + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def histogram(measured: Tensor, expected: Tensor) -> list[int]:
    """How many log-probabilities differ by how much: below 1e-9 nats, then by half decades to 10 and more."""
    if measured.shape != expected.shape:
        return []
    ours, theirs = _logprobs(measured, expected)
    difference = (ours - theirs).abs()
    half_decades = difference.nan_to_num(nan=100.0).clamp(1e-10, 100.0).log10().mul(2).floor()
    bins = half_decades.long().flatten() + 19
    return [int(count) for count in bins.clamp(0, 21).bincount(minlength=22)]


def margins_missed(measured: Tensor, expected: Tensor) -> Tensor:
    """Where the argmaxes differ: by how many nats the oracle prefers its own, (misses,)."""
    lost, missed = _margins(measured, expected)
    return lost[missed]


def margin_rows(measured: Tensor, expected: Tensor) -> Tensor:
    """The same at each position, (rows,), 0 where the argmaxes are equal."""
    if _broken(measured, expected):
        return BROKEN
    lost, missed = _margins(measured, expected)
    return lost.where(missed, 0.0)


def unchosen(logits: Tensor, tokens: Tensor) -> Tensor:
    """By how many nats an engine's own logits prefer another token to the one that it generated, (steps,).

    `logits` (steps, vocab); 0 where a text broke off (-1), inf of a token that has no logit.
    """
    vocab = logits.shape[-1]
    own = logits.gather(-1, tokens.clamp(0, vocab - 1)[:, None]).squeeze(-1)
    lost = (logits.amax(-1) - own).nan_to_num(nan=float("inf"))
    return lost.masked_fill(tokens >= vocab, float("inf")).masked_fill(tokens < 0, 0.0)


def _margins(measured: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    prefer = expected.double().log_softmax(-1)
    ours, theirs = measured.argmax(-1, keepdim=True), expected.argmax(-1, keepdim=True)
    lost = (prefer.gather(-1, theirs) - prefer.gather(-1, ours)).squeeze(-1)
    return lost, (ours != theirs).squeeze(-1)


def routes_differing(measured: Tensor, expected: Tensor) -> int:
    """Number of tokens whose set of experts differs; both (tokens, chosen), sorted."""
    if measured.shape != expected.shape:
        return int(expected.shape[0])
    return int((measured.long() != expected.long()).any(-1).sum())


def choices_missed(chosen: Tensor, scores: Tensor) -> Tensor:
    """By how much each query prefers what it did not choose to what it did, (tokens,).

    `chosen` (tokens, most) has key numbers, -1 for none; `scores` (tokens, tokens) has -inf for keys
    that come later. 0 where the best keys were chosen; inf where a later key was, one twice, or not
    as many as there are up to the most.
    """
    if len(chosen) != len(scores):
        return torch.full((len(scores),), float("inf"))
    count = torch.arange(1, len(scores) + 1).clamp_max(chosen.shape[1])
    taken = torch.zeros_like(scores, dtype=torch.bool)
    rows, places = (chosen >= 0).nonzero(as_tuple=True)
    taken[rows, chosen[rows, places].long().clamp_max(scores.shape[1] - 1)] = True
    worst = scores.masked_fill(~taken, float("inf")).amin(-1)
    best = scores.masked_fill(taken, float("-inf")).amax(-1)
    missed = (best - worst).nan_to_num(nan=float("inf"), neginf=0.0).clamp_min(0.0)
    whole = (taken.sum(-1) == count) & ((chosen >= 0).sum(-1) == count) & worst.isfinite()
    return missed.masked_fill(~whole, float("inf"))
