"""Published checkpoints in full size: their config.json, and every tensor's name, shape and dtype."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from dspatch import variants
from dspatch.conformance.small import whole
from dspatch.errors import UnknownVariantError
from dspatch.facts import Variant
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
SCALE = ".weight_scale_inv"
FP8 = "float8_e4m3fn"

Tensors = Mapping[str, tuple[list[int], str]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A checkpoint as it was published, or (`form` bf16) with its FP8 weights written as bfloat16."""

    variant: str
    form: str
    config: Mapping[str, Any]
    tensors: Tensors

    @property
    def name(self) -> str:
        """The variant, and the form where it is not the only one."""
        return f"{self.variant}/{self.form}" if self.form else self.variant


def listed() -> list[str]:
    """The variants whose checkpoints' tensors are listed."""
    return list(_table())


def names() -> list[str]:
    """Of these those that stand for the family where no model is named."""
    return [name for name in listed() if not variants.variant(name).by_name]


def known(name: str) -> str:
    """The listed variant that has the same tensors as this one: itself, or what it is like.

    Raises `UnknownVariantError` for one whose tensors nobody has listed.
    """
    variant = variants.variant(name)
    if not (like := _like(variant)):
        raise UnknownVariantError(
            f"The names of {variant.name}'s tensors are not listed.",
            why=f"names.toml has {', '.join(_table())}, and variants of the same sizes",
            next=f"name one of them: --variant {next(iter(_table()))}",
        )
    return like


def standing_for(asked: Sequence[str]) -> list[str]:
    """Of these variants those whose tensors are listed, one for each list: the listed one itself, or the first.

    Raises `UnknownVariantError` where there is none of them.
    """
    chosen: dict[str, str] = {}
    for name in asked:
        if like := _like(variants.variant(name)):
            chosen.setdefault(like, like if like in asked else name)
    return list(chosen.values()) or [known(asked[0])]


def _like(variant: Variant) -> str:
    sizes = _sizes(variant)
    return next((each for each in _table() if _sizes(variants.variant(each)) == sizes), "")


def _sizes(variant: Variant) -> dict[str, Any]:
    shaping = (
        "size",
        "rank",
        "layers",
        "heads",
        "experts",
        "replace",
        "dim",
        "topk_method",
        "architecture",
    )
    facts = variant.facts.items()
    return {key: value for key, value in facts if key.endswith(shaping) and "." not in key}


def checkpoint(name: str, form: str = "") -> Published:
    """The checkpoint of a variant; `form` is `fp8` or `bf16` for one that was published in FP8 blocks.

    Raises `UnknownVariantError` for one that is not listed, or not in that form.
    """
    listed, variant = known(name), variants.variant(name)
    tensors = listing(listed)
    quantised = any(dtype == FP8 for _, dtype in tensors.values())
    forms = ("", "fp8", "bf16") if quantised else ("", "bf16")
    if form not in forms:
        raise UnknownVariantError(
            f"The names of {variant.name} are not listed in the form {form!r}.",
            why=f"there is {' and '.join(filter(None, forms))}",
            next=f"leave the form out: --variant {variant.name}",
        )
    if form == "bf16":
        tensors = {n: _upcast(t) for n, t in tensors.items() if not n.endswith(SCALE)}
    chosen = (form or "fp8") if quantised else ""
    return Published(
        variant=variant.name, form=chosen, config=_config(variant, chosen == "fp8"), tensors=tensors
    )


def _upcast(tensor: tuple[list[int], str]) -> tuple[list[int], str]:
    shape, dtype = tensor
    return shape, "bfloat16" if dtype == FP8 else dtype


@cache
def listing(name: str) -> Tensors:
    """Every tensor of a listed checkpoint, shape and dtype by name."""
    rows = _table()[name]["tensors"].items()
    return {own: (row["shape"], row["dtype"]) for pattern, row in rows for own in _spread(pattern)}


def stated(name: str) -> tuple[int, int]:
    """How many tensors and numbers the source of a list counts."""
    return _table()[name]["count"], _table()[name]["elements"]


def elements(tensors: Tensors) -> int:
    """How many numbers the tensors hold."""
    return sum(math.prod(shape) for shape, _ in tensors.values())


def _spread(pattern: str) -> Iterator[str]:
    parts = RANGE.split(pattern)
    literal = parts[::3]
    ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3], strict=True)]
    for numbers in itertools.product(*ranges):
        yield "".join(itertools.chain(*zip(literal, (*map(str, numbers), ""), strict=True)))


def _config(variant: Variant, quantised: bool) -> dict[str, Any]:
    config = whole(variant)
    if variant.num_nextn_predict_layers:
        config["num_nextn_predict_layers"] = variant.num_nextn_predict_layers
    if quantised and variant.quantization:
        stated = asdict(variant.quantization).items()
        config["quantization_config"] = {key: value for key, value in stated if value is not None}
    return config


@cache
def _table() -> Mapping[str, Any]:
    return load(PACKAGE / "conformance" / "names.toml", UnknownVariantError).data
