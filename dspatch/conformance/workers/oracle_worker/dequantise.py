"""Read a quantised checkpoint as the weights that its numbers stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .quantised import ORDER, spread

# What a projection stores, by suffix; the first is there in every form.
SUFFIXES = ("weight_scale_inv", "qweight", "qzeros", "scales", "g_idx")


class UnreadableError(RuntimeError):
    """A projection of a quantised checkpoint that stands for no weights."""


class Parts(dict[str, Tensor]):
    """What a projection stores, by suffix."""

    def __missing__(self, kind: str) -> Tensor:
        raise UnreadableError(f"it has no {kind}")


def meant(
    tensors: Iterable[tuple[str, Tensor]], said: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Every weight in float32 under its published name; `said` is the checkpoint's `quantization_config`.

    Raises `UnreadableError` for a projection that lacks a part, or has one of another shape.
    """
    kept: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors:
        stem, _, kind = name.rpartition(".")
        if kind in SUFFIXES or value.dtype == torch.float8_e4m3fn:
            kept.setdefault(stem, {})[kind] = value
        else:
            yield name, value
    for stem, parts in kept.items():
        try:
            yield f"{stem}.weight", HOW[said["quant_method"]](Parts(parts), said)
        except RuntimeError as error:
            # Shapes that do not go together.
            raise UnreadableError(f"{stem} cannot be read: {error}") from None


def _fp8(parts: Mapping[str, Tensor], said: Mapping[str, Any]) -> Tensor:
    weight, scale = parts["weight"], parts["weight_scale_inv"]
    rows, columns = said["weight_block_size"]
    if tuple(scale.shape) != (-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)):
        raise RuntimeError(f"{tuple(scale.shape)} scales of {tuple(weight.shape)} weights")
    return weight.float() * spread(scale.float(), weight.shape, (rows, columns))


def _awq(parts: Mapping[str, Tensor], said: Mapping[str, Any]) -> Tensor:
    bits = said.get("bits", said.get("w_bit"))
    number, zero = (_numbers(parts[kind], bits, ORDER) for kind in ("qweight", "qzeros"))
    length = len(number) // len(zero)
    zero, scale = (each.repeat_interleave(length, 0) for each in (zero, parts["scales"].float()))
    return ((number - zero) * scale).T.contiguous()


def _gptq(parts: Mapping[str, Tensor], said: Mapping[str, Any]) -> Tensor:
    bits = said["bits"]
    number = _numbers(parts["qweight"].T.contiguous(), bits).T
    # The first format stores zero points less one.
    lifted = 0 if said.get("checkpoint_format", "gptq") == "gptq_v2" else 1
    zero, scale = _numbers(parts["qzeros"], bits) + lifted, parts["scales"].float()
    group = (
        parts["g_idx"].long()
        if "g_idx" in parts
        else torch.arange(len(number)) * len(zero) // len(number)
    )
    return ((number - zero[group]) * scale[group]).T.contiguous()


def _numbers(word: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """The whole numbers in words (rows, words), lowest first unless in another `order`: (rows, numbers)."""
    count = 32 // bits
    parts = (word.unsqueeze(-1) >> torch.arange(count) * bits) & (1 << bits) - 1
    if order:
        parts = parts[..., torch.tensor(order).argsort()]
    return parts.flatten(-2).float()


HOW = {"fp8": _fp8, "awq": _awq, "gptq": _gptq}
