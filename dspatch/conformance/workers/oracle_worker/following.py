"""Hold every token of an engine's own text against the second model, sent to the experts that the engine chose."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from . import metrics, probing, twin

Tensors = Mapping[str, Tensor]


def measure(expected: Tensors, found: Tensors, model: probing.Model) -> list[float]:
    """The largest difference in log-probability of each row of `found`'s logits, in nats, to three digits.

    No router that rounding turned is in it, and texts do not part: what is left is arithmetic and the cache.
    Empty where the routers were not watched at every token, or name experts that there are none of.
    """
    ids = _text(expected, found)
    routes = {n: found[f"routes.{n}"] for n in _sparse(model) if f"routes.{n}" in found}
    if len(routes) != len(_sparse(model)):
        return []
    experts = range(model.config["n_routed_experts"])
    if not all(len(one) == len(ids) and _within(one, experts) for one in routes.values()):
        return []
    return _beside(ids, found["logits"], model, routes)


def by_text(expected: Tensors, found: Tensors, model: probing.Model) -> list[float]:
    """The same beside the second model on its own ways: of an engine that shows no experts, for typical tokens."""
    ids = _text(expected, found)
    return [] if bool((ids < 0).any()) else _beside(ids, found["logits"], model, None)


def _text(expected: Tensors, found: Tensors) -> Tensor:
    """What an engine read: the prompt, and all that it generated but the last token."""
    steps = found["tokens"]
    return torch.cat((expected["ids"][: -len(steps)], steps))[:-1]


def _beside(
    ids: Tensor, logits: Tensor, model: probing.Model, routes: Mapping[int, Tensor] | None
) -> list[float]:
    right = twin.run(model.config, model.held, ids.tolist(), routes=routes).logits
    rows = metrics.logprob_rows(logits, right[-len(logits) :])
    return metrics.short(rows if len(rows) == len(logits) else rows.expand(len(logits)))


def completed(found: Tensors, before: Tensors) -> dict[str, Tensor]:
    """The results of prompts, where a prefix came from the cache with the experts that it went to `before`.

    That is the run which filled the cache.
    """
    out = dict(found)
    for name, value in found.items():
        prompt, _, rest = name.partition(".")
        if rest.startswith("routes.") and name in before:
            cached = int(found[f"{prompt}.cached"]) if f"{prompt}.cached" in found else 0
            out[name] = torch.cat((before[name][:cached], value))
    return out


def _within(chosen: Tensor, experts: range) -> bool:
    return int(chosen.min()) in experts and int(chosen.max()) in experts


def _sparse(model: probing.Model) -> range:
    """The layers with a router."""
    return range(model.config["first_k_dense_replace"], model.config["num_hidden_layers"])
