"""Measure what a probe of an engine gave: one layer alone, routers, rotation, sampling, decode against prefill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import metrics, twin
from .quantised import is_projection

Tensors = Mapping[str, Tensor]
CLOSE = 1e-4  # between two scores that float32 may take for each other
BINS = 12
TILE = 64  # rows and columns of a weight that are judged together


@dataclass(frozen=True, kw_only=True)
class Model:
    """The config, the checkpoint's weights, the same as the engine holds them, and what it computes in.

    It may divide all of the stream by `stretch`, as vLLM does in float16 by the routed scaling, and an operation may
    be off by so many `times` what plain torch is.
    `known` keeps what plain torch makes of each prompt in that dtype, as every fault is held against it.
    """

    config: Mapping[str, Any]
    weights: Tensors
    held: Tensors
    dtype: str
    stretch: float
    times: float = 0.0
    known: dict[str, twin.Run] = field(default_factory=dict)

    def plain(self, prompt: str, ids: Tensor) -> twin.Run:
        """The prompt through plain torch in the engine's dtype."""
        if prompt not in self.known:
            dtype = getattr(torch, self.dtype)
            self.known[prompt] = twin.run(self.config, self.held, ids.tolist(), dtype=dtype)
        return self.known[prompt]


def measure(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> dict[str, Any]:
    """Of each probe in a run its numbers, as JSON values; `found` holds `PROBE|KEY`.

    `expected` are the golden tensors of each prompt.
    """
    kinds = sorted({name.partition("|")[0] for name in found if "|" in name})
    return {kind: MEASURES[kind](twin.below(found, f"{kind}|"), expected, model) for kind in kinds}


def local(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[Any]]:
    """[prompt, layer, relative difference of what it adds, tokens compared, tokens].

    Tokens that go to other experts than the oracle's compute something else, and are left out.
    """
    out, config = [], model.config
    prompts = sorted({name.partition(".")[0] for name in found})
    for prompt in prompts:
        golden, own = expected[prompt], twin.below(found, f"{prompt}.")
        before = model.weights["model.embed_tokens.weight"][golden["ids"]].float()
        for layer in range(config["num_hidden_layers"]):
            after, delta = golden[f"layer.{layer}"], own[f"delta.{layer}"]
            rows = len(delta)
            wanted = (after[:rows] - before[:rows]) * float(own["scale"])
            same = torch.ones(rows, dtype=torch.bool)
            if (routes := own.get(f"routes.{layer}")) is not None:
                same = (routes[:rows].long() == golden[f"routes.{layer}"][:rows].long()).all(-1)
            value = metrics.relative(delta[same], wanted[same]) if bool(same.any()) else math.inf
            out.append([prompt, layer, value, int(same.sum()), rows])
            before = after
    return out


def ladder(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[Any]]:
    """[layers before the last one kept, the engine's error, that of plain torch in the same dtype].

    Errors are those of the median token's logits, against the oracle's state put through norm and head.
    """
    prompt = next(iter(found)).partition(".")[0]
    own, golden = twin.below(found, f"{prompt}."), expected[prompt]
    rows = min(len(value) for value in own.values())
    plain = model.plain(prompt, golden["ids"])
    out = []
    for depth, state in enumerate(plain.states):
        states = golden[f"layer.{depth}"][:rows].double(), state[:rows]
        right, theirs = (twin.headed(model.config, model.weights, one)[1] for one in states)
        got = own.get(f"cut.{depth}")
        if got is not None:
            errors = (metrics.median(metrics.by_row(v[:rows], right)) for v in (got, theirs))
            out.append([depth, *errors])
    return out


def replayed(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[Any]]:
    """[layer or logits, largest relative difference of a token, tokens] beside a model that goes the engine's ways."""
    prompt = next(iter(found)).partition(".")[0]
    golden = expected[prompt]
    own = metrics.restored(golden, twin.below(found, f"{prompt}."), model.stretch)
    layers = range(model.config["num_hidden_layers"])
    routes = {n: own[f"routes.{n}"] for n in layers if f"routes.{n}" in own}
    rows = len(own["layer.0"])
    right = twin.run(model.config, model.held, golden["ids"][:rows].tolist(), routes=routes)
    pairs = {f"layer.{n}": (own[f"layer.{n}"], right.states[n]) for n in layers}
    pairs["logits"] = own["logits"], right.logits[-len(own["logits"]) :]
    return [
        [n, max(metrics.by_row(*pair).tolist(), default=math.inf), rows]
        for n, pair in pairs.items()
    ]


def passkey(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[Any]]:
    """[question, what its tokens lose to the next likely one, in nats, tokens right, tokens, length of the text]."""
    out = []
    for name in sorted({key.removesuffix(".lead") for key in found if key.endswith(".lead")}):
        lead = found[f"{name}.lead"].double()
        lost = float(torch.nn.functional.softplus(-lead).max())
        out.append([name, lost, int((lead > 0).sum()), len(lead), int(found["length"])])
    return out


def routed(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[Any]]:
    """[kind of bias, layer, largest difference of a weight, tokens compared, tokens, vanished ones right].

    Weights are those before the routed scaling.
    Tokens of which float32 may choose other experts than float64 are left out, and looked at apart
    those whose scores vanish in float32: there the sum of the weights is nothing to divide by.
    """
    out, config = [], model.config
    v3 = config["scoring_func"] == "sigmoid"
    scale = float(config["routed_scaling_factor"])
    for name in sorted({name.rpartition(".")[0] for name in found}):
        own = twin.below(found, f"{name}.")
        kind, _, layer = name.partition(".")
        logits, bias = own["logits"].double(), own["bias"].double()
        right, margin = twin.routed(config, logits, bias)
        got = torch.zeros_like(right).scatter(1, own["ids"], own["weights"].double())
        vanished = (own["logits"].float().sigmoid() if v3 else logits + 1).amax(-1) == 0
        sure = (margin > CLOSE) & ~vanished
        # Some engines put the routed scaling on the weights, others on what the experts give.
        worst = min(_worst(got[sure] * gain / scale, right[sure] / scale) for gain in (1.0, scale))
        finite = bool(got[vanished].isfinite().all())
        out.append([kind, int(layer), worst, int(sure.sum()), len(sure), finite])
    return out


def _worst(got: Tensor, right: Tensor) -> float:
    if not bool(got.isfinite().all()):
        return math.inf
    return float((got - right).abs().max()) if got.numel() else math.inf


def turned(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[float]]:
    """[position, relative difference of the rotated query and key], in float64."""
    positions = found["positions"]
    right = twin.rotate(model.config, found["given"].double(), positions.double())
    rows = metrics.by_row(found["got"].flatten(1), right.flatten(1))
    return [[int(p), float(value)] for p, value in zip(positions, rows, strict=True)]


def sampled(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> dict[str, Any]:
    """How far the drawn tokens lie from the distribution asked for, in standard deviations of chi-square.

    That is made of the engine's own logits of each draw, as rounding may have turned a router of the prompt.
    `repeated`: the same seeds drew the same tokens, as many as were drawn `twice`; `varied`: others drew others.
    """
    temperature, top_p = float(found["temperature"]), float(found["top_p"])
    each = [nucleus(row, temperature, top_p) for row in found["logits"].double()]
    right = torch.stack(each).mean(0)
    return {
        "deviation": deviation(found["first"], right),
        "repeated": bool((found["first"][: len(found["again"])] == found["again"]).all()),
        "varied": bool((found["first"][: len(found["other"])] != found["other"]).any()),
        "drawn": len(found["first"]),
        "twice": len(found["again"]),
        "possible": int((right > 0).sum()),
    }


def nucleus(logits: Tensor, temperature: float, top_p: float) -> Tensor:
    """What is drawn from, (vocab,): the fewest best tokens that hold `top_p`, sharpened by `temperature`."""
    probability = (logits / temperature).softmax(-1)
    order = probability.argsort(descending=True)
    before = probability[order].cumsum(0) - probability[order]
    kept = torch.zeros_like(probability).scatter(0, order[before < top_p], 1.0)
    return probability * kept / (probability * kept).sum()


def deviation(drawn: Tensor, right: Tensor) -> float:
    """(chi-square - degrees) / sqrt(2 degrees), at least 0, over bins of about the same probability.

    What cannot be drawn is a bin of its own, to which half a token is granted.
    """
    order = right.argsort(descending=True)
    share = right[order].cumsum(0) - right[order]
    bins = torch.empty_like(order).scatter(0, order, (share * BINS).long().clamp_max(BINS - 1))
    bins = bins.where(right > 0, BINS)
    wanted = torch.zeros(BINS + 1, dtype=torch.float64).index_add(0, bins, right) * len(drawn)
    wanted[BINS] = 0.5
    seen = torch.bincount(bins[drawn], minlength=BINS + 1).double()
    used = wanted > 0
    square = float(((seen - wanted).square() / wanted)[used].sum())
    degrees = max(int(used.sum()) - 2, 1)
    return max((square - degrees) / math.sqrt(2 * degrees), 0.0)


def selfkl(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[float]:
    """e^r - 1 - r of each token, r how much more the prompt's pass gives a token than its step."""
    difference = (found["prefill"] - found["decode"]).double()
    rows = (difference.expm1() - difference).nan_to_num(nan=math.inf, posinf=math.inf)
    return metrics.short(rows)


def dequantised(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> dict[str, Any]:
    """The `worst` tile of what projections multiply by, and `where`; how many were `seen`, and who was `absent`.

    By how much a number differs from the one that is stood for, by the largest of its tile. Routed experts
    have no product with an identity; `absorbed` counts those of attention that were put together again.
    """
    weights = model.weights
    rows = [
        (*_tile(value, weights[name.removesuffix(".absorbed")]), name)
        for name, value in found.items()
    ]
    worst, where, name = max(rows)
    wanted = {n for n in weights if is_projection(n) and ".experts." not in n}
    return {
        "worst": worst,
        "where": f"{name}, {where}",
        "seen": len(rows),
        "absorbed": sum(name.endswith(".absorbed") for name in found),
        "absent": sorted(wanted - found.keys()),
    }


def multiplied(found: Tensors, expected: Mapping[str, Tensors], model: Model) -> list[list[Any]]:
    """[projection, relative difference of its product from that of what is stood for, in float64]."""
    out = []
    for name in sorted(name for name in found if not name.startswith("given.")):
        right = model.weights[name].double()
        given = found[f"given.{right.shape[1]}"].double()
        out.append([name, metrics.relative(found[name].T, given @ right.T)])
    return out


def _tile(found: Tensor, right: Tensor) -> tuple[float, str]:
    """The largest difference in a tile of 64 by 64, over the largest number in it, and which tile."""
    if found.shape != right.shape or not bool(found.isfinite().all()):
        return math.inf, "in shape, or not finite"
    error, size = (_tiles(each) for each in (found.float() - right, right))
    ratio = error / size.clamp_min(1e-30)
    row, column = divmod(int(ratio.argmax()), ratio.shape[1])
    return float(ratio.max()), f"rows from {row * TILE}, columns from {column * TILE}"


def _tiles(value: Tensor) -> Tensor:
    """The largest magnitude of each tile."""
    padded = torch.nn.functional.pad(value, (0, -value.shape[1] % TILE, 0, -value.shape[0] % TILE))
    return padded.abs().unflatten(0, (-1, TILE)).unflatten(-1, (-1, TILE)).amax((1, 3))


MEASURES: dict[str, Callable[..., Any]] = {
    "local": local,
    "ladder": ladder,
    "replayed": replayed,
    "routed": routed,
    "turned": turned,
    "sampled": sampled,
    "selfkl": selfkl,
    "dequantised": dequantised,
    "multiplied": multiplied,
    "passkey": passkey,
}
