"""Random DeepSeek weights, under their published names, of which every single one matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Shape = tuple[int, ...]
BIAS = "e_score_correction_bias"  # of a router, for the choice of experts alone


def shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor of a DeepSeek-V2, V3 or V3.2 checkpoint, in file order."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    predicting = config.get("num_nextn_predict_layers") or 0
    for layer in range(config["num_hidden_layers"] + predicting):
        prefix = f"model.layers.{layer}"
        if layer >= config["num_hidden_layers"]:
            yield from _prediction(config, prefix)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield from _attention(config, f"{prefix}.self_attn")
        if "index_topk" in config:
            yield from _indexer(config, f"{prefix}.self_attn.indexer")
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        if layer < config["first_k_dense_replace"]:
            yield from _mlp(f"{prefix}.mlp", hidden, config["intermediate_size"])
        else:
            yield from _moe(config, f"{prefix}.mlp")
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (vocab, hidden)


def _prediction(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    """What a layer for multi-token prediction has beside an ordinary one."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield f"{prefix}.embed_tokens.weight", (vocab, hidden)
    yield f"{prefix}.enorm.weight", (hidden,)
    yield f"{prefix}.hnorm.weight", (hidden,)
    yield f"{prefix}.eh_proj.weight", (hidden, 2 * hidden)
    yield f"{prefix}.shared_head.norm.weight", (hidden,)
    yield f"{prefix}.shared_head.head.weight", (vocab, hidden)


def _attention(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value, q_rank = config["qk_nope_head_dim"], config["v_head_dim"], config["q_lora_rank"]
    if q_rank is None:
        yield f"{prefix}.q_proj.weight", (heads * (nope + rope), hidden)
    else:
        yield f"{prefix}.q_a_proj.weight", (q_rank, hidden)
        yield f"{prefix}.q_a_layernorm.weight", (q_rank,)
        yield f"{prefix}.q_b_proj.weight", (heads * (nope + rope), q_rank)
    yield f"{prefix}.kv_a_proj_with_mqa.weight", (latent + rope, hidden)
    yield f"{prefix}.kv_a_layernorm.weight", (latent,)
    yield f"{prefix}.kv_b_proj.weight", (heads * (nope + value), latent)
    yield f"{prefix}.o_proj.weight", (hidden, heads * value)


def _indexer(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, heads, dim = (config[k] for k in ("hidden_size", "index_n_heads", "index_head_dim"))
    yield f"{prefix}.wq_b.weight", (heads * dim, config["q_lora_rank"])
    yield f"{prefix}.wk.weight", (dim, hidden)
    yield f"{prefix}.k_norm.weight", (dim,)
    yield f"{prefix}.k_norm.bias", (dim,)
    yield f"{prefix}.weights_proj.weight", (heads, hidden)


def _mlp(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate_proj.weight", (inner, hidden)
    yield f"{prefix}.up_proj.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)


def _moe(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    yield f"{prefix}.gate.weight", (config["n_routed_experts"], hidden)
    if config["topk_method"] == "noaux_tc":
        yield f"{prefix}.gate.{BIAS}", (config["n_routed_experts"],)
    for expert in range(config["n_routed_experts"]):
        yield from _mlp(f"{prefix}.experts.{expert}", hidden, inner)
    yield from _mlp(f"{prefix}.shared_experts", hidden, inner * config["n_shared_experts"])


def tensors(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor in float32, the same bytes for the same config and seed."""
    random = np.random.Generator(np.random.PCG64(seed))
    drawn = {name: _draw(random, name, shape) for name, shape in shapes(config)}
    if "embedding_gain" in config:
        drawn["model.embed_tokens.weight"] *= np.float32(config["embedding_gain"])
    if "passkey" in config:
        from . import retrieval

        return retrieval.planted(drawn, config)
    return drawn


def _draw(random: np.random.Generator, name: str, shape: Shape) -> np.ndarray[Any, Any]:
    values = random.standard_normal(shape, dtype=np.float32)
    if name.endswith(BIAS):
        return _router_bias(values)
    if name.endswith(".bias"):
        return np.asarray(0.5 * values, dtype=np.float32)
    if len(shape) == 1:
        # Norms near one, with a spread: a norm left at its initial one must show.
        return np.asarray(1.0 + 0.1 * values, dtype=np.float32)
    if name.endswith("embed_tokens.weight"):
        return values
    # Fan-in scaling keeps activations at unit variance, so that no part drowns another.
    return np.asarray(values * shape[-1] ** -0.5, dtype=np.float32)


def _router_bias(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Both signs, low enough that a masked expert filled with 0 would win, close enough that all do."""
    bias = np.asarray(0.1 * values - 0.4, dtype=np.float32)
    bias[0] = 0.1
    return bias
