"""What a DeepSeek model is, as its published config.json states it, and what follows from that."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Rope:
    """The rotary embedding: plain (`default`), or stretched by YaRN from the original positions."""

    type: Literal["default", "yarn"]
    theta: float
    factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """How the published weights are quantised; the block is in elements of rows and columns."""

    quant_method: str
    fmt: str
    activation_scheme: str
    weight_block_size: tuple[int, int]
    scale_fmt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One DeepSeek model; facts have config.json's names, None where the model has no such part."""

    name: str
    source: str
    like: str | None = None
    aliases: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    by_name: bool = False
    architecture: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: Rope
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    first_k_dense_replace: int | None = None
    n_routed_experts: int | None = None
    n_shared_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    topk_method: str | None = None
    scoring_func: str | None = None
    n_group: int | None = None
    topk_group: int | None = None
    norm_topk_prob: bool | None = None
    routed_scaling_factor: float | None = None
    num_nextn_predict_layers: int = 0
    quantization: Quantization | None = None
    index_n_heads: int | None = None
    index_head_dim: int | None = None
    index_topk: int | None = None

    @property
    def attention(self) -> Literal["mla", "gqa", "mha"]:
        """Latent attention, grouped queries, or a key and value for every head."""
        if self.kv_lora_rank is not None:
            return "mla"
        return "mha" if self.num_key_value_heads == self.num_attention_heads else "gqa"

    @property
    def families(self) -> frozenset[str]:
        """What a patch can be bound to: attention, `moe` or `dense`, router, rope, `fp8`, `mtp`."""
        found = {self.attention, "dense" if self.n_routed_experts is None else "moe"}
        found |= {f"{self.scoring_func}-router"} if self.scoring_func else set()
        found |= {"yarn" if self.rope.type == "yarn" else "plain-rope"}
        found |= {self.quantization.quant_method} if self.quantization else set()
        found |= {"mtp"} if self.num_nextn_predict_layers else set()
        return frozenset(found | ({"sparse"} if self.index_topk else set()))

    @property
    def qk_head_dim(self) -> int:
        """The length of one head's query and key."""
        if self.qk_nope_head_dim is None or self.qk_rope_head_dim is None:
            return self.hidden_size // self.num_attention_heads
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """The elements that latent attention caches of a token in one layer."""
        if self.kv_lora_rank is None or self.qk_rope_head_dim is None:
            raise AttributeError(f"{self.name} has no latent attention")
        return self.kv_lora_rank + self.qk_rope_head_dim

    def latent_bytes_per_token(self, element_bytes: int = 2) -> int:
        """The latent cache of a token in all layers, in bytes; two bytes an element is bf16."""
        return self.num_hidden_layers * self.latent_dim * element_bytes

    def full_bytes_per_token(self, element_bytes: int = 2) -> int:
        """The cache of a token in all layers with keys and values head by head, in bytes."""
        value = self.v_head_dim or self.qk_head_dim
        per_layer = self.num_key_value_heads * (self.qk_head_dim + value)
        return self.num_hidden_layers * per_layer * element_bytes

    @property
    def softmax_mscale(self) -> float:
        """The factor that YaRN puts on queries and on keys; the softmax scale has its square."""
        if self.rope.factor is None or not self.rope.mscale_all_dim:
            return 1.0
        return 0.1 * self.rope.mscale_all_dim * math.log(self.rope.factor) + 1.0

    @property
    def softmax_scale(self) -> float:
        """What attention scores are multiplied with before the softmax."""
        return float(self.qk_head_dim**-0.5 * self.softmax_mscale**2)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts by name, those of rope and quantisation as `rope.theta` and so on."""
        flat: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _NESTED:
                nested = fields(_NESTED[field.name])
                flat |= {f"{field.name}.{f.name}": getattr(value, f.name, None) for f in nested}
            elif field.name not in _NO_FACTS:
                flat[field.name] = value
        return flat


_NESTED: dict[str, type[Rope] | type[Quantization]] = {"rope": Rope, "quantization": Quantization}
_NO_FACTS = {"name", "source", "like", "aliases", "assumed", "by_name"}
