"""What weights a quantised projection multiplies by: its own product with an identity, and what MLA absorbed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asking import UnaskableError

from .weights import unfused

ROWS = 64  # of the identity at a time
SIZES = (1, 5, 77)  # rows of the products
LAYER = re.compile(r"(model\.layers\.\d+\.self_attn)\.")


def weights(llm: Any, model: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """`dequantised|NAME` (out, in) of every quantised projection, in the engine's dtype, under its published name.

    `dequantised|NAME.absorbed` is the same of `kv_b_proj`, put together of what decoding multiplies by.
    `UnaskableError` where nothing is quantised.
    """
    found = _multiplied(model, _identity, ROWS)
    own = unfused(found, request["config"])
    return {f"dequantised|{name}": value for name, value in {**own, **_absorbed(model)}.items()}


def products(llm: Any, model: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """`multiplied|given.N` (rows, N) for each number of inputs, and `multiplied|NAME` (out, rows) of it.

    As many rows as kernels for one token, for few and for many have. `UnaskableError` as `weights`.
    """
    dtypes = {inputs_of(one): one.params_dtype for _, one in projections(model)}
    given = {count: _drawn(count).to(dtype) for count, dtype in dtypes.items()}
    found = _multiplied(model, lambda one: given[inputs_of(one)], SIZES)
    own = unfused(found, request["config"]) | {f"given.{n}": rows for n, rows in given.items()}
    return {f"multiplied|{name}": value for name, value in own.items()}


def _drawn(inputs: int) -> Any:
    import torch

    return torch.randn(sum(SIZES), inputs, generator=torch.Generator().manual_seed(inputs))


def inputs_of(module: Any) -> int:
    """How many numbers a projection takes."""
    count: int = getattr(module, "input_size_per_partition", 0) or module.input_size
    return count


def projections(model: Any) -> Iterator[tuple[str, Any]]:
    """The projections that multiply by quantised weights, by their names in the engine."""
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        quantised = method is not None and not type(method).__name__.startswith("Unquantized")
        if quantised and hasattr(module, "output_size"):
            yield name, module


def _identity(module: Any) -> Any:
    import torch

    return torch.eye(inputs_of(module)).to(module.params_dtype)


def _multiplied(
    model: Any, given: Callable[[Any], Any], sizes: int | tuple[int, ...]
) -> dict[str, Any]:
    """What each projection's own kernel makes of the rows `given` to it, so many at a time: (out, rows)."""
    import torch

    out = {}
    for name, module in projections(model):
        rows = given(module).to(next(model.parameters()).device)
        with torch.no_grad():
            parts = [module.quant_method.apply(module, some, None) for some in rows.split(sizes)]
        out[f"{name}.weight"] = torch.cat(parts).T.contiguous()
    if not out:
        raise UnaskableError("no projection of this engine is quantised")
    return out


def absorbed_of(model: Any) -> list[tuple[str, Any]]:
    """The attention modules that hold absorbed weights, by the name of their `self_attn`."""
    owners = [(LAYER.match(f"{name}."), module) for name, module in model.named_modules()]
    return [(name[1], module) for name, module in owners if name and hasattr(module, "W_UK_T")]


def _absorbed(model: Any) -> dict[str, Any]:
    """(heads, nope, latent) and (heads, latent, value), as one `kv_b_proj`."""
    import torch

    out = {}
    for name, module in absorbed_of(model):
        keys, values = module.W_UK_T, module.W_UV.transpose(1, 2)
        whole = torch.cat((keys, values), 1).flatten(0, 1)
        out[f"{name}.kv_b_proj.weight.absorbed"] = whole.detach().clone()
    return out
