"""What LMDeploy's TurboMind computes from converted weights, in float64: its layouts, scales and routers.

Written from what its C++ does with each tensor (v0.6.4 to v0.13.0), not from the conversion, so that
a wrong tensor and a wrong number of the configuration both show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from . import rotary
from .twin import below, future

Weights = Mapping[str, Tensor]


class TurboMind:
    """One converted model: `config` as the engine reads it, `tensors` by the engine's names.

    `masks_first` is how the binary routes in groups: the logits of the other groups are masked before
    the softmax (to v0.7.0), not its results after it; `vocab_first`, how the output weights lie.
    """

    def __init__(
        self, config: Mapping[str, Any], tensors: Weights, *, masks_first: bool, vocab_first: bool
    ) -> None:
        self.model = config["model_config"]
        self.frequencies, self.gain = _turns(_rope(config["attention_config"]))
        self.scale = config["attention_config"].get("softmax_scale") or 0.0
        self.tensors = {name: value.double() for name, value in tensors.items()}
        self.masks_first, self.vocab_first = masks_first, vocab_first

    def __call__(self, ids: list[int]) -> Tensor:
        """Logits (tokens, vocab) of one sequence."""
        hidden = self.tensors["tok_embeddings.0.weight"][ids]
        for layer in range(self.model["num_layer"]):
            hidden = hidden + self.attention(layer, self._norm(hidden, layer, "attention_norm"))
            hidden = hidden + self.feed_forward(layer, self._norm(hidden, layer, "ffn_norm"))
        output = self.tensors["output.0.weight"]
        output = output.T if self.vocab_first else output
        return self._rms(hidden, self.tensors["norm.weight"]) @ output

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        """Attention of one layer, (tokens, hidden) to (tokens, hidden).

        A head of the output is as long as one of the query; behind the values that exist, `wo` has
        zeros: in front of them where attention runs over latents, whose rotated part comes first.
        """
        part = below(self.tensors, f"layers.{layer}.attention.")
        tokens, heads = hidden.shape[0], self.model["head_num"]
        query = self._query(part, hidden).view(tokens, heads, self.model["size_per_head"])
        key, value = self._key_value(part, hidden)
        rope = self.model["qk_rope_dim"]
        query = torch.cat((self._rotate(query[..., -rope:]), query[..., :-rope]), -1)
        scores = torch.einsum("qhd,khd->hqk", query, key.expand(-1, heads, -1))
        scale = self.scale or self.model["size_per_head"] ** -0.5
        probabilities = (scores * scale).masked_fill(future(tokens), -math.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", probabilities, value.expand(-1, heads, -1))
        return mixed.reshape(tokens, -1) @ part["wo.0.weight"]

    def _query(self, part: Weights, hidden: Tensor) -> Tensor:
        if not self.model["q_lora_rank"]:
            return hidden @ part["q_proj.0.weight"]
        latent = self._rms(hidden @ part["q_a_proj.weight"], part["q_a_layernorm"])
        return latent @ part["q_b_proj.0.weight"]

    def _key_value(self, part: Weights, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (tokens, heads or 1, head dim), rotated part first."""
        rank = self.model["kv_lora_rank"]
        both = hidden @ part["kv_a_proj.weight"]
        latent = self._rms(both[:, :rank], part["kv_a_layernorm"])
        turned = self._rotate(both[:, None, rank:])
        if "kv_b_proj.0.weight" not in part:
            key = torch.cat((turned, latent[:, None]), -1)
            return key, key
        heads, dim = self.model["head_num"], self.model["size_per_head"]
        nope = dim - self.model["qk_rope_dim"]
        full = (latent @ part["kv_b_proj.0.weight"]).view(len(hidden), heads, -1)
        key = torch.cat((turned.expand(-1, heads, -1), full[..., :nope]), -1)
        value = full[..., nope:]
        return key, torch.nn.functional.pad(value, (0, dim - value.shape[-1]))

    def _rotate(self, value: Tensor) -> Tensor:
        return rotary.rotate(value, self.frequencies, self.gain)

    def feed_forward(self, layer: int, hidden: Tensor) -> Tensor:
        """The dense or shared part of one layer and its experts, (tokens, hidden) each way."""
        out = torch.zeros_like(hidden)
        if self.model["inter_size"][layer]:
            out = _mlp(below(self.tensors, f"layers.{layer}.feed_forward."), hidden)
        if not self.model["expert_num"][layer]:
            return out
        part = below(self.tensors, f"layers.{layer}.moe_ffn.")
        for expert, weight in enumerate(self.route(part, hidden).T):
            out = out + weight[:, None] * _mlp(below(part, f"experts.{expert}."), hidden)
        return out

    def route(self, part: Weights, hidden: Tensor) -> Tensor:
        """Mixing weight of every expert for every token, (tokens, experts), zero where not chosen."""
        model, logits = self.model, hidden @ part["gate.weight"]
        score, choice = self._scores(part, logits)
        chosen = choice.topk(model["experts_per_token"])[1]
        weight = torch.zeros_like(score).scatter(1, chosen, score.gather(1, chosen))
        # Only the kernel of single groups and that of noaux_tc know how to make the sum one.
        if model["norm_topk_prob"] and model["topk_method"] != "group_limited_greedy":
            weight = weight / weight.sum(-1, keepdim=True)
        return weight * model["routed_scale"]

    def _scores(self, part: Weights, logits: Tensor) -> tuple[Tensor, Tensor]:
        """What an expert is weighed by, and what it is chosen by."""
        if self.model["topk_method"] == "noaux_tc":
            sigmoid = self.model.get("scoring_func") == "sigmoid"
            score = logits.sigmoid() if sigmoid else logits.softmax(-1)
            return score, self._best_pairs(score + part["gate.score_correction_bias"])
        if self.model["topk_method"] != "group_limited_greedy":
            return logits.softmax(-1), logits
        if self.masks_first:
            masked = self._strong(logits, -math.inf)
            return masked.softmax(-1), masked
        masked = self._strong(logits.softmax(-1), 0.0)
        return masked, masked

    def _best_pairs(self, choice: Tensor) -> Tensor:
        """The choice among the groups whose two best experts together are best."""
        groups = self.model["moe_group_num"]
        if self.model["topk_group"] >= groups:
            return choice
        grouped = choice.unflatten(-1, (groups, -1))
        return self._kept(grouped, grouped.topk(2)[0].sum(-1), -math.inf)

    def _strong(self, score: Tensor, fill: float) -> Tensor:
        """The scores with those outside the groups of the best experts filled."""
        grouped = score.unflatten(-1, (self.model["moe_group_num"], -1))
        return self._kept(grouped, grouped.amax(-1), fill)

    def _kept(self, grouped: Tensor, strength: Tensor, fill: float) -> Tensor:
        """Grouped scores, in one row again, with those outside the groups of the most strength filled."""
        best = strength.topk(self.model["topk_group"])[1]
        kept = torch.zeros_like(strength).scatter(1, best, 1)
        return grouped.masked_fill(kept[..., None] == 0, fill).flatten(-2)

    def _norm(self, hidden: Tensor, layer: int, name: str) -> Tensor:
        return self._rms(hidden, self.tensors[f"layers.{layer}.{name}.weight"])

    def _rms(self, value: Tensor, weight: Tensor) -> Tensor:
        mean = value.square().mean(-1, keepdim=True)
        return value * (mean + self.model["norm_eps"]).rsqrt() * weight


def _mlp(part: Weights, hidden: Tensor) -> Tensor:
    gate = torch.nn.functional.silu(hidden @ part["w1.0.weight"])
    return (gate * (hidden @ part["w3.0.weight"])) @ part["w2.0.weight"]


def _rope(attention: Mapping[str, Any]) -> Mapping[str, Any]:
    """RoPE in one spelling; to v0.7.3 its numbers stand beside the others of the attention."""
    return attention.get("rope_param") or {
        "type": attention.get("rope_scaling_type") or "default",
        "base": attention.get("rope_theta"),
        "dim": attention.get("rotary_embedding"),
        "factor": attention.get("rope_scaling_factor"),
        **{key: attention.get(key) for key in ("attention_factor", "beta_fast", "beta_slow")},
        "max_position_embeddings": attention.get("max_position_embeddings"),
    }


def _turns(rope: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Angle a position of each pair, and what cosine and sine are multiplied by."""
    if rope["type"] != "yarn":
        return rotary.frequencies(rope["dim"], rope["base"], None), 1.0
    yarn = rotary.Yarn(
        factor=rope["factor"],
        length=rope["max_position_embeddings"],
        beta_fast=rope["beta_fast"],
        beta_slow=rope["beta_slow"],
    )
    return rotary.frequencies(rope["dim"], rope["base"], yarn), rope["attention_factor"]
