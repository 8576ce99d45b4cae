"""vLLM's fused parameters come back under the checkpoint's own names."""

from __future__ import annotations

import numpy as np
import pytest

from dspatch.conformance import small
from dspatch.conformance.workers.oracle_worker import weights as published
from dspatch.engines.workers.vllm_worker import weights

CASES = ["deepseek-v2-lite", "deepseek-v3", "deepseek-v3/odd-heads", "deepseek-v3.2"]


def fused(tensors: dict[str, np.ndarray], experts: str) -> dict[str, np.ndarray]:
    """The parameters as vLLM holds them: what its loader would have made of the checkpoint."""
    out = dict(tensors)
    for name in [name for name in tensors if name.endswith(".gate_proj.weight")]:
        stem = name.removesuffix("gate_proj.weight")
        if ".experts." not in name:
            parts = (out.pop(name), out.pop(f"{stem}up_proj.weight"))
            out[f"{stem}gate_up_proj.weight"] = np.concatenate(parts)
    for name in [name for name in tensors if name.endswith(".q_a_proj.weight")]:
        stem = name.removesuffix("q_a_proj.weight")
        parts = (out.pop(name), out.pop(f"{stem}kv_a_proj_with_mqa.weight"))
        out[f"{stem}fused_qkv_a_proj.weight"] = np.concatenate(parts)
    for name in [name for name in tensors if name.endswith(".indexer.wk.weight")]:
        stem = name.removesuffix("wk.weight")
        parts = (out.pop(name), out.pop(f"{stem}weights_proj.weight"))
        out[f"{stem}wk_weights_proj.weight"] = np.concatenate(parts)
    return _stacked(out, experts)


def _stacked(out: dict[str, np.ndarray], experts: str) -> dict[str, np.ndarray]:
    stems = {name.split(".experts.")[0] for name in out if ".experts." in name}
    for stem in sorted(stems):
        count = sum(name.startswith(f"{stem}.experts.") for name in out) // 3
        rows = [
            {
                part: out.pop(f"{stem}.experts.{n}.{part}_proj.weight")
                for part in ("gate", "up", "down")
            }
            for n in range(count)
        ]
        out[f"{stem}.{experts}.w13_weight"] = np.stack(
            [np.concatenate((row["gate"], row["up"])) for row in rows]
        )
        out[f"{stem}.{experts}.w2_weight"] = np.stack([row["down"] for row in rows])
    return out


@pytest.mark.parametrize("experts", ["experts", "experts.routed_experts"])
@pytest.mark.parametrize("name", CASES)
def test_unfusing_gives_the_checkpoint_back(name: str, experts: str) -> None:
    config = small.case(name).config
    checkpoint = published.tensors(config, seed=0)
    found = weights.unfused(fused(checkpoint, experts), config)
    assert found.keys() == checkpoint.keys()
    assert all(np.array_equal(found[name], checkpoint[name]) for name in checkpoint)


def test_a_padded_vocabulary_is_cut() -> None:
    padded = {"lm_head.weight": np.zeros((576, 4))}
    config = {**small.case("deepseek-v3").config, "vocab_size": 512}
    assert weights.unfused(padded, config)["lm_head.weight"].shape == (512, 4)


def test_swapped_halves_do_not_come_back_equal() -> None:
    config = small.case("deepseek-v3").config
    name = "model.layers.0.mlp.gate_up_proj.weight"
    parameter = np.arange(8.0).reshape(4, 2)
    right = weights.unfused({name: parameter}, config)
    wrong = weights.unfused({name: parameter[[2, 3, 0, 1]]}, config)
    gate = "model.layers.0.mlp.gate_proj.weight"
    assert not np.array_equal(right[gate], wrong[gate])
