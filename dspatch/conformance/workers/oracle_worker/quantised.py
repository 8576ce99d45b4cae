"""A checkpoint as a quantised one is stored, and the weights that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

BLOCK = 128  # rows and columns that share a scale in FP8
GROUP = 128  # inputs that share a scale and a zero point in AWQ
LARGEST = 448.0  # of float8_e4m3fn
# Eight columns share a word of AWQ; the column that each four bits are of, the lowest first.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Stored = dict[str, Tensor]
# The tensors that a form stores in place of a weight, by suffix, and the weight that they stand for.
Form = Callable[[Tensor], tuple[Stored, Tensor]]


def fp8_blocks(weight: Tensor) -> tuple[Stored, Tensor]:
    """A weight (out, in) in float8, a float32 scale a block; blocks at the ends are cut off, as DeepSeek-V3's."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    largest = padded.abs().unflatten(0, (-1, BLOCK)).unflatten(-1, (-1, BLOCK)).amax((1, 3))
    # Short scales, so that a product has no more digits than float32, whoever makes it.
    scale = (largest / LARGEST).bfloat16().float()
    wide = spread(scale, weight.shape, (BLOCK, BLOCK))
    number = (weight / wide).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return {".weight": number, ".weight_scale_inv": scale}, number.float() * wide


def awq(weight: Tensor) -> tuple[Stored, Tensor]:
    """A weight (out, in) in four bits, inputs first, with float16 scales and whole zero points of groups."""
    grouped = weight.T.unflatten(0, (-1, GROUP))
    least, most = grouped.amin(1).clamp_max(0), grouped.amax(1).clamp_min(0)
    scale = ((most - least) / 15).bfloat16().half()
    zero = (-least / scale.float()).round().clamp(0, 15)
    number = (grouped / scale.float()[:, None]).round() + zero[:, None]
    number = number.clamp(0, 15)
    meant = ((number - zero[:, None]) * scale.float()[:, None]).flatten(0, 1).T
    words = {".qweight": number.flatten(0, 1), ".qzeros": zero}
    stored = {suffix: _words(value, order=ORDER) for suffix, value in words.items()}
    return {**stored, ".scales": scale}, meant.contiguous()


def gptq(weight: Tensor, bits: int = 4) -> tuple[Stored, Tensor]:
    """A weight (out, in) in so many bits around a fixed zero point, inputs first, scales of groups in float16.

    As GPTQ's first format has it: zero points are stored less one, and `g_idx` names each input's group.
    """
    grouped = weight.T.unflatten(0, (-1, GROUP))
    middle = 1 << bits - 1
    scale = (grouped.abs().amax(1) / (middle - 0.5)).bfloat16().half()
    number = (grouped / scale.float()[:, None]).round().clamp(-middle, middle - 1)
    meant = (number * scale.float()[:, None]).flatten(0, 1).T
    whole = (number + middle).flatten(0, 1)
    group = torch.arange(len(whole), dtype=torch.int32) // GROUP
    stored = {
        ".qweight": _words(whole.T, bits).T,
        ".qzeros": _words(torch.full_like(scale, middle - 1), bits),
        ".scales": scale,
        ".g_idx": group,
    }
    return stored, meant.contiguous()


def gptq_8(weight: Tensor) -> tuple[Stored, Tensor]:
    """The same in eight bits."""
    return gptq(weight, bits=8)


def _words(number: Tensor, bits: int = 4, order: tuple[int, ...] = ()) -> Tensor:
    """Whole numbers (rows, columns) of so many bits in words of 32, (rows, columns · bits / 32) in int32."""
    count = 32 // bits
    some = number.to(torch.int64).unflatten(-1, (-1, count))[..., order or range(count)]
    word = sum(some[..., place] << bits * place for place in range(count))
    assert isinstance(word, Tensor)
    return (word - ((word >> 31) << 32)).to(torch.int32)


def spread(scale: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """A scale for every number of a weight of this shape, from one a block."""
    for dim, length in enumerate(block):
        scale = scale.repeat_interleave(length, dim)
    return scale[: shape[0], : shape[1]]


FORMS: dict[str, Form] = {"fp8-blocks": fp8_blocks, "awq": awq, "gptq": gptq, "gptq-8": gptq_8}
SAID: dict[str, dict[str, Any]] = {
    "fp8-blocks": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    },
    "awq": {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True,
        "modules_to_not_convert": None,
    },
    **{name: {
        "quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": True, "desc_act": False,
        "lm_head": False, "checkpoint_format": "gptq",
    } for name, bits in (("gptq", 4), ("gptq-8", 8))},
}  # fmt: skip


def quantised(weights: Mapping[str, Tensor], form: str) -> tuple[Stored, Stored]:
    """All tensors as they are stored, and as they are meant; only projections of layers are quantised."""
    stored, meant = {}, {}
    for name, value in weights.items():
        stored[name], meant[name] = value, value
        if is_projection(name):
            del stored[name]
            parts, meant[name] = FORMS[form](value)
            base = name.removesuffix(".weight")
            stored |= {base + suffix: part.contiguous() for suffix, part in parts.items()}
    return stored, meant


def is_projection(name: str) -> bool:
    """Whether a tensor is one that published quantised checkpoints quantise."""
    return "_proj" in name and name.endswith(".weight")
