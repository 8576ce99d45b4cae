"""Faults that stand in what an engine loads: a checkpoint beside the right one, with other numbers in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from asking import UnaskableError

WEIGHTS = "model.safetensors"
Change = Callable[[dict[str, Any], Mapping[str, Any]], None]


def write(checkpoint: Path, name: str, folder: Path) -> Path:
    """The checkpoint with this fault, in a folder of its own. Raises `UnaskableError` for one without such tensors."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    config = json.loads((checkpoint / "config.json").read_text())
    tensors = load_file(checkpoint / WEIGHTS)
    WEIGHED.get(name, unchanged)(tensors, config)
    CONFIGURED.get(name, unchanged)(config, config)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def unchanged(given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Leave it as it is."""


def norm_at_one(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """The norm of the latents as if it had not been loaded, in every layer."""
    for name in _need(tensors, "kv_a_layernorm.weight"):
        tensors[name] = tensors[name].new_ones(tensors[name].shape)


def shared_expert_lost(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Nothing comes from the shared experts."""
    for name in _need(tensors, "shared_experts.down_proj.weight"):
        tensors[name] = tensors[name] * 0


def experts_exchanged(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Each layer's experts in the opposite order."""
    last = config["n_routed_experts"] - 1
    before = dict(tensors)
    for name in _need(tensors, ".mlp.experts."):
        front, _, rest = name.partition(".mlp.experts.")
        number, _, what = rest.partition(".")
        tensors[name] = before[f"{front}.mlp.experts.{last - int(number)}.{what}"]


def rope_in_halves(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """The turned part of queries and keys as if its pairs were halves."""
    size, own = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
    keys = _need(tensors, "kv_a_proj_with_mqa.weight")
    queries = _need(tensors, "q_b_proj.weight" if config.get("q_lora_rank") else "q_proj.weight")
    for name in keys:
        tensors[name] = _halves(tensors[name], config["kv_lora_rank"], size, None)
    for name in queries:
        tensors[name] = _halves(tensors[name], own, size, own + size)


def _halves(weight: Any, start: int, size: int, head: int | None) -> Any:
    """The rows from `start` on, of each head, evens before odds."""
    import torch

    order = torch.cat([torch.arange(0, size, 2), torch.arange(1, size, 2)])
    heads = weight.clone().unflatten(0, (-1, head or weight.shape[0]))
    heads[:, start : start + size] = heads[:, start + order]
    return heads.flatten(0, 1)


def _need(tensors: Mapping[str, Any], part: str) -> list[str]:
    found = [name for name in tensors if part in name]
    if not found:
        raise UnaskableError(f"no tensor of this checkpoint is a {part}")
    return found


def routed_scaling_lost(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """What the routed experts give is not scaled."""
    config["routed_scaling_factor"] = 1.0


def softmax_factor_lost(config: dict[str, Any], _: Mapping[str, Any]) -> None:
    """YaRN without its factor on the scores."""
    for key in ("rope_scaling", "rope_parameters"):
        if config.get(key):
            config[key] = {**config[key], "mscale_all_dim": 0.0, "mscale": 0.0}


def router_bias_lost(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Experts are chosen without the router's bias."""
    for name in _need(tensors, "e_score_correction_bias"):
        tensors[name] = tensors[name] * 0


WEIGHED: dict[str, Change] = {
    "norm-at-one": norm_at_one,
    "shared-expert-lost": shared_expert_lost,
    "experts-exchanged": experts_exchanged,
    "rope-in-halves": rope_in_halves,
    "router-bias-lost": router_bias_lost,
}
CONFIGURED: dict[str, Change] = {
    "routed-scaling-lost": routed_scaling_lost,
    "softmax-factor-lost": softmax_factor_lost,
}
# Settings of the engine, not of what it loads: neither cache nor chunks, by one start.
SETTINGS: dict[str, Mapping[str, Any]] = {
    "prefixes-not-cached": {"enable_prefix_caching": False},
    "prompts-not-cut": {"max_prefill_token_num": 8192},
}
