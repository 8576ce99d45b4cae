"""Run LMDeploy's own conversion of one MLA layer, and hold what it exports against full heads.

    python lmdeploy_export.py MODULE Q_LORA_RANK

MODULE is `lmdeploy/turbomind/deploy/module.py` of a release; a rank of 0 is DeepSeek-V2-Lite's layer,
which has one q_proj. Prints JSON: how it failed, or the exported shapes and the largest differences.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

HEADS, HIDDEN, NOPE, ROPE, VALUE, RANK = 16, 2048, 128, 64, 128, 512
TOKENS = 5


def main() -> None:
    """Export one layer and judge it."""
    lora = int(sys.argv[2])
    layer = weights(lora)
    try:
        exported = export(loaded(sys.argv[1]), layer)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}))
        return
    shapes = {name: list(tensor.shape) for name, tensor in exported.items()}
    print(json.dumps({"shapes": shapes, **differences(layer, exported)}))


def weights(lora: int) -> dict[str, torch.Tensor | None]:
    """The projections of one layer, in the order in which the conversion takes them."""
    torch.manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64) / shape[-1] ** 0.5

    return {
        "q_a": random(lora, HIDDEN) if lora else None,
        "q_b": random(HEADS * (NOPE + ROPE), lora) if lora else None,
        "q": None if lora else random(HEADS * (NOPE + ROPE), HIDDEN),
        "kv_a": random(RANK + ROPE, HIDDEN),
        "kv_b": random(HEADS * (NOPE + VALUE), RANK),
        "o": random(HIDDEN, HEADS * VALUE),
    }


def loaded(path: str) -> Any:
    """The module, without the packages that it only takes base classes from."""
    for name in ("deploy", "deploy.source_model", "deploy.target_model"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = []
    for name, known in (
        ("parameter", {"get_params": None}),
        ("source_model.base", {"BaseReader": object}),
        ("target_model.base", {"BaseOutputModel": object}),
    ):
        module = ModuleType(f"deploy.{name}")
        module.__dict__.update(known)
        sys.modules[f"deploy.{name}"] = module
    spec = importlib.util.spec_from_file_location("deploy.module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def export(module: Any, layer: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """What the conversion saves of a layer, by name."""
    saved: dict[str, torch.Tensor] = {}

    def save(tensor: torch.Tensor, name: str, **how: object) -> None:
        saved[name.split(".")[3]] = tensor

    config = SimpleNamespace(
        head_num=HEADS, kv_lora_rank=RANK, qk_rope_dim=ROPE, size_per_head=RANK + ROPE,
        v_head_dim=RANK, hidden_units=HIDDEN,
    )  # fmt: skip
    model = SimpleNamespace(attn_tp_size=1, model_config=config, save_split=save)
    module.MLA(model)._export(0, tuple(layer.values()), "weight", lambda tensor: tensor)
    return saved


def differences(
    layer: dict[str, torch.Tensor | None], exported: dict[str, torch.Tensor]
) -> dict[str, float]:
    """The largest differences between attention over full heads and over latents."""
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    q = layer["q"] if layer["q"] is not None else layer["q_b"] @ layer["q_a"]
    query = (x @ q.T).view(TOKENS, HEADS, NOPE + ROPE)
    latent, rope = (x @ layer["kv_a"].T).split([RANK, ROPE], -1)
    full = (latent @ layer["kv_b"].T).view(TOKENS, HEADS, NOPE + VALUE)
    key = torch.cat([full[..., :NOPE], rope[:, None].expand(-1, HEADS, -1)], -1)
    scores = torch.einsum("qhd,khd->hqk", query, key)
    right = torch.einsum("hqk,khd->qhd", scores.softmax(-1), full[..., NOPE:])
    right = right.reshape(TOKENS, -1) @ layer["o"].T
    folded = (
        x @ exported["q_a_proj"] @ exported["q_b_proj"]
        if layer["q"] is None
        else (x @ exported["q_proj"])
    )
    folded = folded.view(TOKENS, HEADS, RANK + ROPE)
    got = torch.einsum("qhd,kd->hqk", folded, torch.cat([latent, rope], -1))
    # The engine's heads are as long as its keys: the output's first numbers are a pad.
    out = exported["wo"].view(HEADS, RANK + ROPE, HIDDEN)[:, ROPE:]
    left = torch.einsum("hqk,kd->qhd", got.softmax(-1), latent)
    result = torch.einsum("qhd,hdm->qm", left, out)
    return {
        "scores": (got - scores).abs().max().item(),
        "output": (result - right).abs().max().item(),
    }


main()
