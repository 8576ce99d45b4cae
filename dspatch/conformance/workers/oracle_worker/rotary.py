"""Rotary embedding as DeepSeek has it, in float64: pairs turned by position, YaRN's blend of frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """How YaRN stretches: by `factor` from `length`, between pairs that turn so often over that length."""

    factor: float
    length: float
    beta_fast: float
    beta_slow: float


def frequencies(dim: int, base: float, yarn: Yarn | None) -> Tensor:
    """Angle a position of each pair, (dim/2,), with YaRN's blend where there is one."""
    plain: Tensor = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if yarn is None:
        return plain

    def pair_of(turns: float) -> float:
        return dim * math.log(yarn.length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_of(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_of(yarn.beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 1e-3)).clamp(0, 1).double()
    return plain / yarn.factor * ramp + plain * (1 - ramp)


def rotate(
    value: Tensor, frequency: Tensor, gain: float, positions: Tensor | None = None
) -> Tensor:
    """Pairs (2i, 2i+1) of the last dimension turned by position times frequency i, times `gain`.

    The first dimension counts the positions, unless they are given.
    """
    if positions is None:
        positions = torch.arange(len(value))
    angle = positions.double()[:, None] * frequency
    cos, sin = angle.cos()[:, None] * gain, angle.sin()[:, None] * gain
    even, odd = value[..., 0::2], value[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
