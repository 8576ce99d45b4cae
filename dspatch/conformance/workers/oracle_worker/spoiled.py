"""Faults of a conversion, planted into what it wrote: tensors, and the configuration beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Tensors = dict[str, Tensor]
Fault = Callable[[dict[str, Any], Tensors], None]


def _first(tensors: Tensors, *words: str) -> str:
    """The name of the first tensor that has all the words."""
    return next(name for name in tensors if all(word in name for word in words))


def _scale(config: dict[str, Any], tensors: Tensors) -> None:
    config["attention_config"]["softmax_scale"] = (
        config["model_config"]["size_per_head"] ** -0.5 / 2
    )


def _swapped_mlp(config: dict[str, Any], tensors: Tensors) -> None:
    gate = _first(tensors, "experts.0.w1")
    up = gate.replace("w1", "w3")
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def _swapped_experts(config: dict[str, Any], tensors: Tensors) -> None:
    one = _first(tensors, "experts.0.w2")
    other = one.replace("experts.0", "experts.1")
    tensors[one], tensors[other] = tensors[other], tensors[one]


def _rope_halves(config: dict[str, Any], tensors: Tensors) -> None:
    """The rotated part in halves, as other models have it, where the engine turns pairs."""
    name, rank = _first(tensors, "kv_a_proj"), config["model_config"]["kv_lora_rank"]
    value = tensors[name].clone()
    turned = value[:, rank:]
    value[:, rank:] = turned.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    tensors[name] = value


def _pad(config: dict[str, Any], tensors: Tensors) -> None:
    """The output projection padded at the wrong end of each head."""
    name, model = _first(tensors, "attention.wo"), config["model_config"]
    heads = tensors[name].view(model["head_num"], model["size_per_head"], -1)
    shift = model["size_per_head"] - model["v_head_dim"]
    tensors[name] = heads.roll(shift, 1).reshape(tensors[name].shape).contiguous()


def _norm(config: dict[str, Any], tensors: Tensors) -> None:
    name = _first(tensors, "kv_a_layernorm")
    tensors[name] = tensors[name].new_ones(tensors[name].shape)


def _unscaled_routes(config: dict[str, Any], tensors: Tensors) -> None:
    config["model_config"]["routed_scale"] *= 1.01


def _gain(config: dict[str, Any], tensors: Tensors) -> None:
    """YaRN's frequencies reckoned from another length than the one that was trained on."""
    attention = config["attention_config"]
    (attention.get("rope_param") or attention)["max_position_embeddings"] *= 2


FAULTS: dict[str, Fault] = {
    "softmax-scale": _scale,
    "gate-is-up": _swapped_mlp,
    "experts-swapped": _swapped_experts,
    "rope-in-halves": _rope_halves,
    "output-padded-wrong": _pad,
    "latent-norm-lost": _norm,
    "routes-unscaled": _unscaled_routes,
    "rope-length": _gain,
}
