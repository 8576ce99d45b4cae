"""Faults of a conversion, planted into what it wrote: tensors, and the configuration beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from .quantised import BLOCK, spread

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


def _transposed(scale: Tensor) -> Tensor:
    """The blocks' scales, read in the other order."""
    return scale.T.reshape(scale.shape)


def _inverted(scale: Tensor) -> Tensor:
    return 1 / scale


def _cut(scale: Tensor) -> Tensor:
    """The last row of blocks lost: of 576 rows the 64 that are rotated."""
    kept = scale.clone()
    kept[-1] = 0
    return kept


# What each makes of the scales that a weight in FP8 was to be multiplied by.
SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "block-scales-transposed": _transposed,
    "block-scales-inverted": _inverted,
    "last-block-dropped": _cut,
}


def plant(fault: str, config: dict[str, Any], tensors: Tensors, given: Path) -> None:
    """Spoil what was converted of the checkpoint in `given`."""
    if fault in SCALES:
        _rescaled(tensors, given, SCALES[fault])
    else:
        FAULTS[fault](config, tensors)


def _rescaled(tensors: Tensors, given: Path, wrong: Callable[[Tensor], Tensor]) -> None:
    """The first layer's key and value projection, as wrong scales would have made it."""
    from safetensors import safe_open

    with safe_open(given / "model.safetensors", "pt") as stored:
        scale = stored.get_tensor("model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv")
    name = "layers.0.attention.kv_a_proj.weight"
    value = tensors[name]
    block = (BLOCK, BLOCK)
    right, other = (spread(each, value.T.shape, block).T for each in (scale, wrong(scale)))
    tensors[name] = (value / right * other).contiguous()
