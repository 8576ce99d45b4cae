"""What quantisation loses: one engine's logits of the same prompts, by quantised weights and by those before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from . import metrics

SEPARATOR = "#"  # between the name of a set of prompts and the number of a prompt in it


def measure(before: Path, after: Path) -> dict[str, dict[str, float]]:
    """By set of prompts: `tokens`, divergence from `before` in nats (`kl_mean`, `kl_p99`, `kl_max`), `top1`.

    Every position of a prompt counts once, with the same text in front of it; `top1` is the share of
    positions at which both find the same token the likeliest. Each file is what an engine's run left.
    """
    from safetensors.torch import load_file

    first, second = load_file(before), load_file(after)
    rows: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name in sorted(
        key.removesuffix(".logits")
        for key in first
        if key.startswith("alone/") and key.endswith(".logits")
    ):
        group = name.removeprefix("alone/").partition(SEPARATOR)[0]
        rows.setdefault(group, []).append(_compared(first, second, name))
    return {
        group: _summary(*(torch.cat(each) for each in zip(*found, strict=True)))
        for group, found in rows.items()
    }


def _compared(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], name: str
) -> tuple[Tensor, Tensor]:
    """Divergence and agreement at each position of a prompt; what was generated follows other texts."""
    rows = len(first[f"{name}.logits"]) - len(first[f"{name}.tokens"]) + 1
    p, q = (each[f"{name}.logits"][:rows] for each in (first, second))
    return metrics.divergence_rows(q, p), p.argmax(-1) == q.argmax(-1)


def _summary(divergence: Tensor, agreed: Tensor) -> dict[str, float]:
    return {
        "tokens": len(divergence),
        "kl_mean": float(divergence.mean()),
        "kl_p99": float(divergence.quantile(0.99)),
        "kl_max": float(divergence.max()),
        "top1": float(agreed.double().mean()),
    }
