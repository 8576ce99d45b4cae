"""Hold an engine's own text against the second model, sent to the experts that the engine chose: tokens and choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import choosing, metrics, probing, twin

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Followed:
    """One text beside the second model on the engine's ways; nothing where it could not be followed.

    `tokens` are the largest difference in log-probability of each row of its logits, in nats, to three digits.
    `experts` has of each layer [layer, worst missed score, choices that miss one, choices]: by how much the second
    model prefers experts that were not chosen, where it was sent to the engine's in all layers before.
    """

    tokens: list[float]
    experts: list[list[Any]]


NOT_FOLLOWED = Followed(tokens=[], experts=[])


def measure(expected: Tensors, found: Tensors, model: probing.Model) -> Followed:
    """What no router that rounding turned is in: texts do not part, what is left is arithmetic, cache and choices.

    Nothing where the routers were not watched at every token, or name experts that there are none of.
    """
    ids = _text(expected, found)
    routes = {n: found[f"routes.{n}"] for n in _sparse(model) if f"routes.{n}" in found}
    if len(routes) != len(_sparse(model)):
        return NOT_FOLLOWED
    experts = range(model.config["n_routed_experts"])
    if not all(len(one) == len(ids) and _within(one, experts) for one in routes.values()):
        return NOT_FOLLOWED
    right = twin.run(model.config, model.held, ids.tolist(), routes=routes)
    return Followed(
        tokens=_beside(right.logits, found["logits"]),
        experts=[
            _choices(layer, right.routers[layer], chosen, model) for layer, chosen in routes.items()
        ],
    )


def _choices(layer: int, raw: Tensor, chosen: Tensor, model: probing.Model) -> list[Any]:
    bias = twin.biased(twin.below(model.held, f"model.layers.{layer}.mlp."), raw)
    missed = choosing.missed(model.config, raw, bias, chosen)
    return [layer, float(missed.max()), int((missed > 0).sum()), len(missed)]


def by_text(expected: Tensors, found: Tensors, model: probing.Model) -> list[float]:
    """The tokens beside the second model on its own ways: of an engine that shows no experts, for typical tokens."""
    ids = _text(expected, found)
    if bool((ids < 0).any()):
        return []
    return _beside(twin.run(model.config, model.held, ids.tolist()).logits, found["logits"])


def _text(expected: Tensors, found: Tensors) -> Tensor:
    """What an engine read: the prompt, and all that it generated but the last token."""
    steps = found["tokens"]
    return torch.cat((expected["ids"][: -len(steps)], steps))[:-1]


def _beside(right: Tensor, logits: Tensor) -> list[float]:
    rows = metrics.logprob_rows(logits, right[-len(logits) :])
    return metrics.short(rows if len(rows) == len(logits) else rows.expand(len(logits)))


def completed(found: Tensors, before: Tensors) -> dict[str, Tensor]:
    """The results of prompts, where a prefix came from the cache with the experts that it went to `before`.

    That is the run which filled the cache. Of it is also what attention read at positions that were not run.
    """
    out = dict(found)
    for name, value in found.items():
        prompt, _, rest = name.partition(".")
        if rest.startswith("context.") and name in before and before[name].shape == value.shape:
            out[name] = value.where(~value.isnan(), before[name])
        if rest.startswith("routes.") and name in before:
            cached = int(found[f"{prompt}.cached"]) if f"{prompt}.cached" in found else 0
            out[name] = torch.cat((before[name][:cached], value))
    return out


def _within(chosen: Tensor, experts: range) -> bool:
    return int(chosen.min()) in experts and int(chosen.max()) in experts


def _sparse(model: probing.Model) -> range:
    """The layers with a router."""
    return range(model.config["first_k_dense_replace"], model.config["num_hidden_layers"])
