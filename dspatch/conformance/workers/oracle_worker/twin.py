"""A second DeepSeek in float64, so that the oracle is not just whatever transformers does.

Written from the models' definition, with plain loops over experts and full attention; it shares no
code with transformers. One forward of a small checkpoint takes a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import rotary
from .weights import BIAS

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Logits (tokens, vocab), the stream after each layer (tokens, hidden), and what the last norm makes of it.

    Of each layer with a router its logits (tokens, experts), of a model with an indexer scores (tokens, tokens).
    """

    logits: Tensor
    states: tuple[Tensor, ...] = ()
    final: Tensor | None = None
    scores: tuple[Tensor, ...] = ()
    routers: Mapping[int, Tensor] = field(default_factory=dict)


def run(
    config: Mapping[str, Any],
    weights: Weights,
    ids: list[int],
    *,
    dtype: torch.dtype = torch.float64,
    routes: Mapping[int, Tensor] | None = None,
) -> Run:
    """One forward pass over a whole sequence, in float64 or as `dtype` rounds.

    `routes` (tokens, chosen) by layer are the experts to send tokens to, whatever the routers choose.
    """
    # A router's bias is no factor of a product; models keep it in float32.
    own = {
        n: v if n.endswith("_bias") and v.dtype != dtype and dtype != torch.float64 else v.to(dtype)
        for n, v in weights.items()
    }
    hidden = own["model.embed_tokens.weight"][ids]
    scores, states, routers = [], [], {}
    for layer in range(config["num_hidden_layers"]):
        part = below(own, f"model.layers.{layer}.")
        normed = norm(hidden, part["input_layernorm.weight"], config)
        unseen = future(len(ids))
        if "index_topk" in config:
            scores.append(index_scores(config, below(part, "self_attn."), normed))
            unseen = _unchosen(scores[-1], config["index_topk"])
        hidden = hidden + attention(config, below(part, "self_attn."), normed, unseen)
        normed = norm(hidden, part["post_attention_layernorm.weight"], config)
        if "mlp.gate.weight" in part:
            routers[layer] = _gated(below(part, "mlp."), normed)
        chosen = (routes or {}).get(layer)
        hidden = hidden + feed_forward(config, below(part, "mlp."), normed, chosen)
        states.append(hidden)
    final, out = headed(config, own, hidden)
    return Run(logits=out, states=tuple(states), final=final, scores=tuple(scores), routers=routers)


def headed(config: Mapping[str, Any], weights: Weights, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """What the last norm and the head make of a stream: (tokens, hidden) and (tokens, vocab)."""
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    final = norm(hidden, weights["model.norm.weight"].to(hidden.dtype), config)
    return final, final @ head.to(hidden.dtype).T


def future(tokens: int) -> Tensor:
    """What no query may see, (tokens, tokens): every key that comes later."""
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


def _unchosen(scores: Tensor, count: int) -> Tensor:
    """What no query may see: all but its `count` best keys, and never one that comes later."""
    best = scores.topk(min(count, scores.shape[1]))[1]
    return torch.ones_like(scores, dtype=torch.bool).scatter(1, best, False) | future(len(scores))


def index_scores(config: Mapping[str, Any], part: Weights, hidden: Tensor) -> Tensor:
    """How much each query wants each key, (tokens, tokens): equation 1 of DeepSeek-V3.2's report.

    Heads vote by the positive part of query times key, each with a weight that the query gives it.
    Queries come from the compressed query, keys are shared by the heads, and the first part of both
    is rotated in halves, where attention itself rotates pairs. A key that comes later has -inf.
    """
    tokens, heads, dim = hidden.shape[0], config["index_n_heads"], config["index_head_dim"]
    query = (_query_latent(config, part, hidden) @ part["indexer.wq_b.weight"].T).view(
        tokens, heads, dim
    )
    key = torch.nn.functional.layer_norm(
        hidden @ part["indexer.wk.weight"].T,
        (dim,),
        part["indexer.k_norm.weight"],
        part["indexer.k_norm.bias"],
        1e-6,
    )
    both = torch.cat((query, key[:, None]), 1)
    rope = config["qk_rope_head_dim"]
    # Halves are pairs in another order; the order does not matter to a product of two of them.
    paired = both[..., :rope].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    both = torch.cat((rotate(config, paired), both[..., rope:]), -1)
    votes = torch.einsum("qhd,kd->qhk", both[:, :heads], both[:, heads]).relu()
    weight = hidden @ part["indexer.weights_proj.weight"].T * (heads * dim) ** -0.5
    return torch.einsum("qh,qhk->qk", weight, votes).masked_fill(future(tokens), -math.inf)


def _query_latent(config: Mapping[str, Any], part: Weights, hidden: Tensor) -> Tensor:
    return norm(hidden @ part["q_a_proj.weight"].T, part["q_a_layernorm.weight"], config)


def attention(config: Mapping[str, Any], part: Weights, hidden: Tensor, unseen: Tensor) -> Tensor:
    """Multi-head latent attention over one sequence, (tokens, hidden) to (tokens, hidden).

    `unseen` (tokens, tokens) says which keys a query does not see.
    """
    heads, rope, nope = (
        config[key] for key in ("num_attention_heads", "qk_rope_head_dim", "qk_nope_head_dim")
    )
    tokens, latent = hidden.shape[0], config["kv_lora_rank"]
    if config["q_lora_rank"] is None:
        query = hidden @ part["q_proj.weight"].T
    else:
        query = _query_latent(config, part, hidden) @ part["q_b_proj.weight"].T
    query = query.view(tokens, heads, nope + rope)
    compressed = hidden @ part["kv_a_proj_with_mqa.weight"].T
    expanded = norm(compressed[:, :latent], part["kv_a_layernorm.weight"], config)
    expanded = (expanded @ part["kv_b_proj.weight"].T).view(tokens, heads, -1)
    turned = rotate(config, torch.cat((query[..., nope:], compressed[:, None, latent:]), 1))
    scores = torch.einsum("qhd,khd->hqk", query[..., :nope], expanded[..., :nope])
    scores = scores + torch.einsum("qhd,kd->hqk", turned[:, :heads], turned[:, heads])
    scores = (scores * softmax_scale(config)).masked_fill(unseen, -math.inf)
    share = wide(scores).softmax(-1).to(expanded.dtype)
    mixed = torch.einsum("hqk,khd->qhd", share, expanded[..., nope:])
    return mixed.reshape(tokens, -1) @ part["o_proj.weight"].T


def softmax_scale(config: Mapping[str, Any]) -> float:
    """1/sqrt(head dim), times YaRN's squared mscale of all dims when the config has YaRN."""
    scale = float((config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5)
    yarn = _yarn(config)
    return scale if yarn is None else scale * _mscale(yarn["factor"], yarn["mscale_all_dim"]) ** 2


def _yarn(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    scaling: Mapping[str, Any] | None = config.get("rope_scaling")
    return scaling if scaling and scaling["type"] == "yarn" else None


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 or not mscale else 0.1 * mscale * math.log(factor) + 1.0


def rotate(config: Mapping[str, Any], value: Tensor, positions: Tensor | None = None) -> Tensor:
    """Rotate pairs of the last dim by position; see `rotary.rotate`."""
    return rotary.rotate(value, *turns(config), positions).to(value.dtype)


def turns(config: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Angle a position of each pair, and what cosine and sine are multiplied by."""
    dim, base, yarn = config["qk_rope_head_dim"], float(config["rope_theta"]), _yarn(config)
    if yarn is None:
        return rotary.frequencies(dim, base, None), 1.0
    blend = rotary.Yarn(
        factor=yarn["factor"],
        length=yarn["original_max_position_embeddings"],
        beta_fast=yarn["beta_fast"],
        beta_slow=yarn["beta_slow"],
    )
    gain = _mscale(yarn["factor"], yarn["mscale"]) / _mscale(yarn["factor"], yarn["mscale_all_dim"])
    return rotary.frequencies(dim, base, blend), gain


def route(
    config: Mapping[str, Any], part: Weights, hidden: Tensor, chosen: Tensor | None = None
) -> Tensor:
    """Mixing weight of every expert for every token, (tokens, experts), zero where not chosen."""
    raw = _gated(part, hidden)
    if chosen is None:
        return routed(config, raw, biased(part, raw))[0]
    return weighed(config, scored(config, raw), chosen.long())


def _gated(part: Weights, hidden: Tensor) -> Tensor:
    """A router's logits, (tokens, experts)."""
    return wide(hidden @ part["gate.weight"].T)


def routed(config: Mapping[str, Any], raw: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Mixing weights by a router's logits, and each token's margin: how nearly another choice was made.

    Both (tokens, ...): the weights of all experts, and the least difference between what was taken
    and what was left, of experts and of groups.
    """
    score = scored(config, raw)
    choice = preferred(config, score, bias)
    margin = torch.full((len(raw),), math.inf, dtype=raw.dtype)
    if config["topk_method"] != "greedy":
        grouped, strength = strengths(config, choice)
        margin = _margin(strength, config["topk_group"], margin)
        kept = torch.zeros_like(strength).scatter(1, strength.topk(config["topk_group"])[1], 1)
        choice = grouped.masked_fill(kept[..., None] == 0, -math.inf).flatten(-2)
    margin = _margin(choice, config["num_experts_per_tok"], margin)
    chosen = choice.topk(config["num_experts_per_tok"])[1]
    return weighed(config, score, chosen), margin


def scored(config: Mapping[str, Any], raw: Tensor) -> Tensor:
    """What a router makes of its logits: the score of each expert, (tokens, experts)."""
    return raw.sigmoid() if config["scoring_func"] == "sigmoid" else raw.softmax(-1)


def biased(part: Weights, raw: Tensor) -> Tensor:
    """A router's bias (experts,) in the dtype of its logits; 0 of one that has none."""
    return part.get(f"gate.{BIAS}", torch.zeros(())).to(raw.dtype)


def preferred(config: Mapping[str, Any], score: Tensor, bias: Tensor) -> Tensor:
    """What experts are chosen by: the score, of DeepSeek-V3's router with its bias."""
    return score + bias if config["scoring_func"] == "sigmoid" else score


def strengths(config: Mapping[str, Any], choice: Tensor) -> tuple[Tensor, Tensor]:
    """Experts in their groups, (tokens, groups, each), and what groups are chosen by, (tokens, groups)."""
    grouped = choice.unflatten(-1, (config["n_group"], -1))
    two = config["scoring_func"] == "sigmoid"
    return grouped, grouped.topk(2)[0].sum(-1) if two else grouped.amax(-1)


def weighed(config: Mapping[str, Any], score: Tensor, chosen: Tensor) -> Tensor:
    """The scores (tokens, experts) of the `chosen` ones as mixing weights, 0 elsewhere."""
    weight = torch.zeros_like(score).scatter(1, chosen, score.gather(1, chosen))
    if config["norm_topk_prob"]:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    return weight * float(config["routed_scaling_factor"])


def _margin(values: Tensor, count: int, before: Tensor) -> Tensor:
    """The lesser of `before` and the difference of the last value taken and the first one left."""
    if count >= values.shape[-1]:
        return before
    best = values.topk(count + 1)[0]
    return before.minimum(best[:, count - 1] - best[:, count])


def feed_forward(
    config: Mapping[str, Any], part: Weights, hidden: Tensor, chosen: Tensor | None = None
) -> Tensor:
    """A dense layer, or shared experts and routed ones, (tokens, hidden) each way."""
    if "gate.weight" not in part:
        return mlp(part, hidden)
    out = mlp(below(part, "shared_experts."), hidden)
    weights = route(config, part, hidden, chosen).to(hidden.dtype)
    for expert, weight in enumerate(weights.T):
        out = out + weight[:, None] * mlp(below(part, f"experts.{expert}."), hidden)
    return out


def mlp(part: Weights, hidden: Tensor) -> Tensor:
    """Gate, up and down projection of one dense part, (tokens, hidden) each way."""
    gate = torch.nn.functional.silu(hidden @ part["gate_proj.weight"].T)
    return (gate * (hidden @ part["up_proj.weight"].T)) @ part["down_proj.weight"].T


def norm(value: Tensor, weight: Tensor, config: Mapping[str, Any]) -> Tensor:
    """The root mean square norm, in at least float32."""
    own = wide(value)
    scale = (own.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt()
    return (own * scale * weight).to(value.dtype)


def wide(value: Tensor) -> Tensor:
    """Sums are float32's at least, as in any engine."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def below(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with the prefix, under the rest of their names."""
    return {name[len(prefix) :]: v for name, v in weights.items() if name.startswith(prefix)}
