"""What TurboMind's C++ computes from the modules it was given, in float64.

Written from `UnifiedAttentionLayer`, `mla_utils.cu`, `rotary_embedding.h`, `MoeFfnLayer` and
`moe_utils_v2.cu` (v0.14.0 to v0.16.0), not from the conversion, so that a wrong tensor and a wrong
number of a configuration both show.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from oracle_worker import rotary, twin
from torch import Tensor

YARN = 4  # RopeType of the C++


def logits(model: Any, ids: list[int]) -> Tensor:
    """Logits (tokens, vocab) of one sequence."""
    hidden = model.tensors["tok_embeddings"][ids]
    for layer in layers(model):
        hidden = hidden + attention(
            layer.children["attention"], normed(layer, "attention_norm", hidden)
        )
        hidden = hidden + feed_forward(layer, normed(layer, "ffn_norm", hidden))
    return linear(model, "output", normed(model, "norm", hidden))


def layers(model: Any) -> list[Any]:
    """The decoder layers, in order."""
    found = model.children["layers"].children
    return [found[str(number)] for number in range(len(found))]


def normed(module: Any, name: str, value: Tensor) -> Tensor:
    """RMSNorm by a child of a module."""
    norm = module.children[name]
    mean = value.square().mean(-1, keepdim=True)
    return value * (mean + norm.config.norm_eps).rsqrt() * norm.tensors["weight"]


def linear(module: Any, name: str, value: Tensor) -> Tensor:
    """A projection; weights are [in, out]."""
    return value @ module.children[name].tensors["weight"]


def attention(module: Any, hidden: Tensor) -> Tensor:
    """Attention over latents, (tokens, hidden) each way; keys are values, their rotated part first."""
    cfg, tokens = module.config, hidden.shape[0]
    if "q_proj" in module.children:
        query = linear(module, "q_proj", hidden)
    else:
        query = normed(module, "q_a_layernorm", linear(module, "q_a_proj", hidden))
        query = linear(module, "q_b_proj", query)
    query = query.view(tokens, cfg.head_num, cfg.head_dim)
    both = linear(module, "kv_a_proj", hidden)
    rank = module.children["kv_a_layernorm"].tensors["weight"].numel()
    latent = normed(module, "kv_a_layernorm", both[:, :rank])
    key = torch.cat((rotated(cfg.rope, both[:, None, rank:])[:, 0], latent), -1)
    query = torch.cat((rotated(cfg.rope, query[..., rank:]), query[..., :rank]), -1)
    scores = torch.einsum("qhd,kd->hqk", query, key) * (cfg.softmax_scale or cfg.head_dim**-0.5)
    later = twin.future(tokens)
    mixed = torch.einsum("hqk,kd->qhd", scores.masked_fill(later, -math.inf).softmax(-1), key)
    return linear(module, "wo", mixed.reshape(tokens, -1))


def rotated(rope: Any, value: Tensor) -> Tensor:
    """Pairs turned by position, by the engine's configuration of RoPE; see `rotary.rotate`."""
    if rope.type != YARN:
        return rotary.rotate(value, rotary.frequencies(rope.dim, rope.base, None), 1.0)
    yarn = rotary.Yarn(
        factor=rope.factor,
        length=rope.max_position_embeddings,
        beta_fast=rope.yarn_beta_fast,
        beta_slow=rope.yarn_beta_slow,
    )
    turns = rotary.frequencies(rope.dim, rope.base, yarn)
    return rotary.rotate(value, turns, rope.yarn_attention_factor)


def feed_forward(layer: Any, hidden: Tensor) -> Tensor:
    """Dense part, or experts and what is shared, (tokens, hidden) each way."""
    out = torch.zeros_like(hidden)
    if "feed_forward" in layer.children:
        out = mlp(layer.children["feed_forward"], hidden)
    if "moe_ffn" not in layer.children:
        return out
    moe = layer.children["moe_ffn"]
    if "shared" in moe.children:
        out = out + mlp(moe.children["shared"], hidden)
    experts = moe.children["experts"].children
    for number, weight in enumerate(route(moe, hidden).T):
        out = out + weight[:, None] * mlp(experts[str(number)], hidden)
    return out


def mlp(module: Any, hidden: Tensor) -> Tensor:
    """SwiGLU; gate and up lie one after the other, or element by element where SiLU is fused."""
    both = linear(module, "w1w3", hidden)
    fused = module.config.fuse_silu
    gate, up = (both[:, 0::2], both[:, 1::2]) if fused else both.chunk(2, -1)
    return linear(module, "w2", torch.nn.functional.silu(gate) * up)


def route(moe: Any, hidden: Tensor) -> Tensor:
    """Mixing weight of every expert for every token, zero where not chosen."""
    cfg = moe.config
    score = linear(moe, "gate", hidden).softmax(-1)
    choice = score
    if cfg.topk_method == "group_limited_greedy":
        assert (cfg.expert_num, cfg.n_group) == (160, 8), "the process would abort"
        grouped = score.unflatten(-1, (cfg.n_group, -1))
        best = grouped.amax(-1).topk(cfg.topk_group)[1]
        kept = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter(1, best, True)
        choice = (grouped * kept[..., None]).flatten(-2)
    chosen = choice.topk(cfg.experts_per_token)[1]
    weight = torch.zeros_like(score).scatter(1, chosen, choice.gather(1, chosen))
    if cfg.norm_topk_prob:
        weight = weight / weight.sum(-1, keepdim=True)
    return weight * cfg.routed_scale
