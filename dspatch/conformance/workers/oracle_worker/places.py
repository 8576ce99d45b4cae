"""What the oracle computes inside, operation by operation, at some positions of every prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from . import twin

# Enough to tell a fault of every position from one past the first, past a chunk, or of decoding.
FIRST, EVERY, GENERATED = 4, 16, 4

# Operations by the module, below a decoder layer, whose output is theirs.
OUTPUTS = {
    "input_norm": "input_layernorm",
    "q_a": "self_attn.q_a_proj",
    "q_a_norm": "self_attn.q_a_layernorm",
    "query": "self_attn.q_b_proj",
    "kv_a": "self_attn.kv_a_proj_with_mqa",
    "kv_a_norm": "self_attn.kv_a_layernorm",
    "o_proj": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "shared_expert": "mlp.shared_experts",
    "mlp": "mlp",
}

Hook = Callable[..., None]


def rows(length: int, total: int) -> list[int]:
    """The positions to keep of a prompt of `length` tokens that goes on to `total`."""
    kept = {*range(FIRST), *range(0, length, EVERY), *range(length, length + GENERATED)}
    # The last token is generated, and never read.
    return sorted(position for position in kept if position < total - 1)


@contextmanager
def watched(model: Any, config: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Record one forward pass of transformers' model: `embed`, `final_norm` and, of each layer, `N.OPERATION`.

    All are (tokens, width) in float32; `rope` is the rotated query and key of all heads, by the
    second model, `attention` what o_proj reads, `router` the weight of every expert before the
    routed scaling, 0 where it was not chosen, `experts` what the routed ones add together.
    """
    seen: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for module, hook in _hooks(model, seen):
            stack.enter_context(module.register_forward_hook(hook))
        for number, layer in enumerate(model.model.layers):
            before = _before(seen, f"{number}.attention")
            stack.enter_context(layer.self_attn.o_proj.register_forward_pre_hook(before))
        yield seen
    for number in range(config["num_hidden_layers"]):
        _finish(seen, f"{number}.", config)


def _hooks(model: Any, seen: dict[str, Tensor]) -> Iterator[tuple[Any, Hook]]:
    yield model.model.embed_tokens, _output(seen, "embed")
    yield model.model.norm, _output(seen, "final_norm")
    for number, layer in enumerate(model.model.layers):
        modules = dict(layer.named_modules())
        for name, path in OUTPUTS.items():
            if path in modules:
                yield modules[path], _output(seen, f"{number}.{name}")
        if "self_attn.q_proj" in modules:
            yield modules["self_attn.q_proj"], _output(seen, f"{number}.query")
        if "mlp.gate" in modules:
            yield modules["mlp.gate"], _routed(seen, f"{number}.")


def _output(seen: dict[str, Tensor], name: str) -> Hook:
    def hook(module: Any, args: Any, output: Any) -> None:
        seen[name] = _flat(output)

    return hook


def _before(seen: dict[str, Tensor], name: str) -> Hook:
    def hook(module: Any, args: Any) -> None:
        seen[name] = _flat(args[0])

    return hook


def _routed(seen: dict[str, Tensor], prefix: str) -> Hook:
    def hook(module: Any, args: Any, output: Any) -> None:
        scores, weights, chosen = output
        seen[f"{prefix}gate"] = _flat(scores)
        dense = torch.zeros(scores.shape[0], scores.shape[-1])
        seen[f"{prefix}router"] = dense.scatter(1, chosen, weights.float())

    return hook


def _flat(value: Tensor) -> Tensor:
    return value.detach().reshape(-1, value.shape[-1]).clone()


def _finish(seen: dict[str, Tensor], prefix: str, config: Mapping[str, Any]) -> None:
    """Add the rotation, which is no module, and take the shared expert from the whole."""
    heads, latent = config["num_attention_heads"], config["kv_lora_rank"]
    query = seen[f"{prefix}query"].double().unflatten(-1, (heads, -1))
    key = seen[f"{prefix}kv_a"].double()[:, None, latent:]
    parts = torch.cat((query[..., config["qk_nope_head_dim"] :], key), 1)
    seen[f"{prefix}rope"] = twin.rotate(config, parts).flatten(1).float()
    if f"{prefix}router" in seen:
        seen[f"{prefix}router"] /= config["routed_scaling_factor"]
        shared = seen.get(f"{prefix}shared_expert", torch.zeros(()))
        seen[f"{prefix}experts"] = seen.pop(f"{prefix}mlp") - shared
