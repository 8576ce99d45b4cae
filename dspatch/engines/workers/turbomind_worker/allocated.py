"""The tensors that TurboMind allocates for a DeepSeek model, by what it reads of a configuration.

From the constructors of its weights (`LlamaDecoderLayerWeight`, `LlamaDenseWeight`), one GPU. A tensor
that the conversion does not write stays as it was allocated; one of another size ends the load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Shape = tuple[int, ...]


def names(config: Mapping[str, Any], *, latent: bool, vocab_first: bool) -> dict[str, Shape]:
    """Shape by name; `latent` for an engine that runs attention over latents.

    With `vocab_first` the output weights are (vocab, hidden), else the other way round.
    """
    model = config["model_config"]
    hidden, vocab = model["hidden_units"], model["vocab_size"]
    found = {
        "tok_embeddings.0.weight": (model["embedding_size"], hidden),
        "norm.weight": (hidden,),
        "output.0.weight": (vocab, hidden) if vocab_first else (hidden, vocab),
    }
    for layer in range(model["num_layer"]):
        for name, shape in _layer(model, layer, latent):
            found[f"layers.{layer}.{name}"] = shape
    return found


def _layer(model: Mapping[str, Any], layer: int, latent: bool) -> Iterator[tuple[str, Shape]]:
    hidden = model["hidden_units"]
    yield "attention_norm.weight", (hidden,)
    yield "ffn_norm.weight", (hidden,)
    yield from _attention(model, latent)
    if inner := model["inter_size"][layer]:
        yield from _mlp("feed_forward", hidden, inner)
    if experts := model["expert_num"][layer]:
        yield "moe_ffn.gate.weight", (hidden, experts)
        # Before latents there was no router with a bias, and its name is not read.
        if latent and model["topk_method"] == "noaux_tc":
            yield "moe_ffn.gate.score_correction_bias", (experts,)
        for expert in range(experts):
            yield from _mlp(f"moe_ffn.experts.{expert}", hidden, model["expert_inter_size"])


def _attention(model: Mapping[str, Any], latent: bool) -> Iterator[tuple[str, Shape]]:
    hidden, query = model["hidden_units"], model["head_num"] * model["size_per_head"]
    rank, rope, low = model["kv_lora_rank"], model["qk_rope_dim"], model["q_lora_rank"]
    if low:
        yield "attention.q_a_proj.weight", (hidden, low)
        yield "attention.q_a_layernorm", (low,)
        yield "attention.q_b_proj.0.weight", (low, query)
    else:
        yield "attention.q_proj.0.weight", (hidden, query)
    yield "attention.kv_a_proj.weight", (hidden, rank + rope)
    yield "attention.kv_a_layernorm", (rank,)
    if not latent:
        full = model["size_per_head"] - rope + model["v_head_dim"]
        yield "attention.kv_b_proj.0.weight", (rank, model["head_num"] * full)
    yield "attention.wo.0.weight", (query, hidden)


def _mlp(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.w1.0.weight", (hidden, inner)
    yield f"{prefix}.w3.0.weight", (hidden, inner)
    yield f"{prefix}.w2.0.weight", (inner, hidden)
