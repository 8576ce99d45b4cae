"""Routers that are right but for one fault, put in place of an engine's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .observe import routing
from .plant import each

Config = Mapping[str, Any]
WRONG = (
    "masked-with-zero",
    "mixes-with-bias",
    "group-by-max",
    "bias-rounded",
    "masked-before-softmax",
    "renormalised",
    "not-renormalised",
)


def biases_of(model: Any) -> list[Any]:
    """The correction biases of all routers, in the order of the layers."""
    return [p for n, p in model.named_parameters() if n.endswith("e_score_correction_bias")]


@contextmanager
def rerouted(model: Any, config: Config, wrong: str) -> Iterator[None]:
    """Every router replaced by one that is right but for the fault `wrong`; see `choose`."""
    last: list[Any] = []
    biases = _gates(model)

    def saw(bias: Any) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            last[:] = [output[0] if isinstance(output, tuple) else output, bias]

        return hook

    def change(weights: Any, ids: Any) -> tuple[Any, Any]:
        logits, bias = last[0].float(), None if last[1] is None else last[1].float()
        dense = choose(logits, bias, config, wrong)
        new, chosen = dense.topk(ids.shape[1])
        gain = config["routed_scaling_factor"]
        right = choose(logits, bias, config, "")
        # Some engines put the routed scaling on the weights, others on what the experts give.
        scaled = float(weights.sum()) / max(float(right.sum()), 1e-30) > (1 + 1 / gain) / 2
        new = new if scaled else new / gain
        return new.to(weights.dtype), chosen.to(ids.dtype)

    watched = each(gate.register_forward_hook(saw(bias)) for gate, bias in biases)
    with watched, routing(model, change):
        yield


def _gates(model: Any) -> list[tuple[Any, Any]]:
    """The gates of all layers that have one, with their biases."""
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    own = biases_of(model) or [None] * len(gates)
    return list(zip(gates, own, strict=True))


def choose(logits: Any, bias: Any, config: Config, wrong: str) -> Any:
    """Mixing weight of every expert, (tokens, experts), 0 where not chosen, with one fault.

    `masked-with-zero`: experts of groups that lost get 0, not minus infinity. `mixes-with-bias`: the
    biased score is the weight. `group-by-max`: a group is as good as its best expert, where two count.
    `bias-rounded`: the bias in bfloat16. `masked-before-softmax`: only experts of the groups that won
    share the probability. `renormalised`: the weights sum to one where the model does not ask for it.
    `not-renormalised`: the other way round. Nothing: right.
    """
    import torch

    sigmoid = config["scoring_func"] == "sigmoid"
    score = logits.sigmoid() if sigmoid else logits.softmax(-1)
    if bias is not None and wrong == "bias-rounded":
        bias = bias.to(torch.bfloat16).float()
    choice = score if bias is None else score + bias
    if config["topk_method"] != "greedy":
        grouped = choice.unflatten(-1, (config["n_group"], -1))
        two = sigmoid and wrong != "group-by-max"
        strength = grouped.topk(2)[0].sum(-1) if two else grouped.amax(-1)
        kept = torch.zeros_like(strength).scatter(1, strength.topk(config["topk_group"])[1], 1)
        lost = (kept[..., None] == 0).expand_as(grouped).flatten(-2)
        if wrong == "masked-before-softmax":
            score = logits.masked_fill(lost, float("-inf")).softmax(-1)
        fill = 0.0 if wrong == "masked-with-zero" else float("-inf")
        choice = choice.masked_fill(lost, fill)
    chosen = choice.topk(config["num_experts_per_tok"])[1]
    mixed = choice if wrong == "mixes-with-bias" else score
    weight = torch.zeros_like(score).scatter(1, chosen, mixed.gather(1, chosen))
    normed = config["norm_topk_prob"] and wrong != "not-renormalised"
    if normed or wrong == "renormalised":
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return weight * config["routed_scaling_factor"]
