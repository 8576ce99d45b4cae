"""What builders gave the engine, in the layout and under the names that conversions had to v0.13.0.

So one reference runs both. Weights that the engine multiplies in FP8 or four bits are multiplied out here, by
the scales that it has for them; gate and up lie one after the other, or in turns as its kernels take them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .compiled import Config, Module

ROPE = {1: "default", 4: "yarn"}
BLOCK = 128  # rows and columns of FP8 that share a scale, and of gate and up that lie in turns
Tensors = dict[str, Tensor]


def laid_out(model: Module) -> tuple[dict[str, Any], Tensors]:
    """The configuration and the tensors of a model, one GPU."""
    layers = [
        model.children["layers"].children[str(n)]
        for n in range(len(model.children["layers"].children))
    ]
    tensors = {
        "tok_embeddings.0.weight": model.tensors["tok_embeddings"],
        "norm.weight": model.children["norm"].tensors["weight"],
        "output.0.weight": whole(model.children["output"]),
    }
    for number, layer in enumerate(layers):
        tensors |= {f"layers.{number}.{name}": value for name, value in _layer(layer)}
    return _config(model, layers, tensors), tensors


def types(module: Module) -> set[str]:
    """The types that the engine has its weights in."""
    found = set(module.types.values())
    return found.union(*(types(child) for child in module.children.values()))


def _layer(layer: Module) -> Iterator[tuple[str, Tensor]]:
    for norm in ("attention_norm", "ffn_norm"):
        yield f"{norm}.weight", layer.children[norm].tensors["weight"]
    for name, child in layer.children["attention"].children.items():
        if name.endswith("layernorm"):
            yield f"attention.{name}", child.tensors["weight"]
        else:
            split = "" if name in ("q_a_proj", "kv_a_proj") else ".0"
            yield f"attention.{name}{split}.weight", whole(child)
    moe = layer.children.get("moe_ffn")
    dense = layer.children.get("feed_forward") or (moe and moe.children.get("shared"))
    if dense:
        yield from _mlp("feed_forward", dense)
    if moe:
        yield "moe_ffn.gate.weight", whole(moe.children["gate"])
        for name, value in moe.tensors.items():
            yield f"moe_ffn.gate.{name}", value
        for expert, child in moe.children["experts"].children.items():
            yield from _mlp(f"moe_ffn.experts.{expert}", child)


def _mlp(prefix: str, module: Module) -> Iterator[tuple[str, Tensor]]:
    gate, up = _gate_up(module)
    yield f"{prefix}.w1.0.weight", gate
    yield f"{prefix}.w3.0.weight", up
    yield f"{prefix}.w2.0.weight", whole(module.children["w2"])


def _gate_up(module: Module) -> tuple[Tensor, Tensor]:
    if "w1w3" not in module.children:
        return whole(module.children["w1"]), whole(module.children["w3"])
    fused = module.children["w1w3"]
    both = whole(fused)
    turns = both.shape[-1] // 2
    if module.config.fuse_silu:
        turns = BLOCK if "FP8_E4M3" in fused.types.values() else 1
    both = both.unflatten(-1, (-1, 2, turns))
    return both[..., 0, :].flatten(-2), both[..., 1, :].flatten(-2)


def whole(linear: Module) -> Tensor:
    """A weight (in, out), multiplied out where it is quantised."""
    weight, scales = linear.tensors["weight"], linear.tensors.get("scales")
    if scales is None:
        return weight
    if linear.types["weight"] == "FP8_E4M3":
        return weight.view(torch.float8_e4m3fn).double() * spread(
            scales, weight.shape, (BLOCK, BLOCK)
        )
    numbers = _nibbles(weight).double()
    group = (numbers.shape[0] // scales.shape[0], 1)
    zeros = spread(linear.tensors["zeros"], numbers.shape, group)
    return (numbers - zeros) * spread(scales, numbers.shape, group)


def spread(scales: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """A scale for every number, of blocks that may be cut off at the ends."""
    wide = scales.double()
    for dim, length in enumerate(block):
        wide = wide.repeat_interleave(length, dim)
    return wide[: shape[0], : shape[1]]


def _nibbles(packed: Tensor) -> Tensor:
    """Four-bit numbers (rows, 8 columns), from words that hold eight of a row, the lowest bits first."""
    return torch.stack([(packed >> 4 * place) & 15 for place in range(8)], -1).flatten(-2)


def _config(model: Module, layers: list[Module], tensors: Tensors) -> dict[str, Any]:
    attention = _one([layer.children["attention"].config for layer in layers])
    sparse = {
        number: layer.children["moe_ffn"]
        for number, layer in enumerate(layers)
        if "moe_ffn" in layer.children
    }
    moe = _one([each.config for each in sparse.values()])
    inner = [
        value.shape[1] for name, value in tensors.items() if ".experts." in name and ".w1." in name
    ]
    feed = [
        tensors.get(f"layers.{number}.feed_forward.w1.0.weight") for number in range(len(layers))
    ]
    experts = [
        sparse[number].children["experts"].children if number in sparse else ()
        for number in range(len(layers))
    ]
    vocab, hidden = tensors["tok_embeddings.0.weight"].shape
    return {
        "model_config": {
            "hidden_units": hidden, "vocab_size": vocab, "embedding_size": vocab, "num_layer": len(layers),
            "head_num": attention.head_num, "size_per_head": attention.head_dim, "v_head_dim": attention.v_head_dim,
            **{key: getattr(attention, key) for key in ("kv_lora_rank", "q_lora_rank", "qk_rope_dim")},
            "norm_eps": _one(list(_epsilons(model))),
            "inter_size": [0 if w1 is None else w1.shape[1] for w1 in feed],
            "expert_num": [len(each) for each in experts],
            "expert_inter_size": _one(inner),
            **{key: getattr(moe, key) for key in ("experts_per_token", "norm_topk_prob", "topk_method", "topk_group")},
            "routed_scale": moe.routed_scale, "moe_group_num": moe.n_group, "scoring_func": moe.scoring_func,
        },
        "attention_config": {"softmax_scale": attention.softmax_scale, "rope_param": _rope(attention.rope)},
    }  # fmt: skip


def _rope(rope: Any) -> dict[str, Any]:
    return {
        "type": ROPE[rope.type],
        "attention_factor": rope.yarn_attention_factor,
        "beta_fast": rope.yarn_beta_fast,
        "beta_slow": rope.yarn_beta_slow,
        **{key: getattr(rope, key) for key in ("base", "dim", "factor", "max_position_embeddings")},
    }


def _epsilons(module: Module) -> Iterator[float]:
    if module.kind == "NormConfig":
        yield module.config.norm_eps
    for child in module.children.values():
        yield from _epsilons(child)


def _one(found: list[Any]) -> Any:
    """What all layers have; the layout knows no other."""
    first = found[0]
    assert all(_facts(each) == _facts(first) for each in found), (
        "layers differ in what all should have"
    )
    return first


def _facts(value: Any) -> Any:
    return (
        {key: _facts(each) for key, each in vars(value).items()}
        if isinstance(value, Config)
        else value
    )
