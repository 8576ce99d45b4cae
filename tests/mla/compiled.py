"""Compile the rendered kernels for cards that are not here; print what ptxas made of each, as JSON.

    python compiled.py FOLDER-OF-mla_decode

Runs in an environment with torch and Triton 3.6, without a GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from tests.mla import cubin

# Heads, page size, and how many of the kernels that would serve them.
SHAPES = {
    "sm_80": [(16, 64, 1), (128, 16, 1)],
    "sm_89": [(16, 64, 2), (128, 64, 1)],
    "sm_90": [(16, 64, 1), (32, 64, 2), (16, 16, 2), (128, 64, 2), (128, 16, 1)],
}
# The same for caches in fp8 and, with a page of 0, for lists of slots.
FP8_SHAPES = {
    "sm_80": [(16, 64, 1), (128, 16, 1)],
    "sm_89": [(16, 16, 1), (128, 64, 1)],
    "sm_90": [(16, 64, 1), (16, 24, 1), (32, 64, 1), (16, 0, 1), (128, 64, 1)],
}
SPARSE_SHAPES = {
    "sm_80": [(16, 0, 1)],
    "sm_89": [(16, 0, 1)],
    "sm_90": [(16, 0, 1), (32, 0, 1), (128, 0, 1)],
}
INTS = ("table", "lengths", "workers")
FLOATS = ("lse", "part_out", "part_unit", "part_lse")
NUMBERS = ("capacity", "table_stride", "page_stride", "token_stride")
ALIGNED = ("q", "cache", *INTS, "out", *FLOATS, "page_stride", "token_stride")


def main(folder: str) -> None:
    """Compile every choice for every shape, and print a list of what came of it."""
    sys.path.insert(0, folder)
    print(json.dumps(list(_all())))


def _all() -> Iterator[dict[str, Any]]:
    from mla_decode import choices

    for card, (capability, shared) in cubin.CARDS.items():
        for shape, count in _shapes(card):
            for choice in choices(shape, capability, shared)[:count]:
                kernel = _compile(shape, choice, capability)
                yield {
                    "card": card, "limit": shared, "heads": shape.heads, "page": shape.page,
                    "fp8": shape.fp8, "sparse": shape.sparse,
                    "kernel": choice.kernel, "stages": choice.stages, "claimed": choice.shared,
                    **cubin.facts(kernel),
                }  # fmt: skip


def _shapes(card: str) -> Iterator[tuple[Any, int]]:
    from mla_decode import Shape
    from mla_decode.choice import FP8

    for table, cache in ((SHAPES, None), (FP8_SHAPES, FP8), (SPARSE_SHAPES, None)):
        for heads, page, count in table[card]:
            made = {"heads": heads, "q_len": 1, "page": page or 64, "dtype": torch.bfloat16}
            yield Shape(**made, cache=cache, sparse=page == 0), count


def _compile(shape: Any, choice: Any, capability: tuple[int, int]) -> Any:
    sizes: dict[str, Any] = {
        "ROWS": shape.rows, "HEADS": shape.heads, "LATENT": shape.latent, "ROPE": shape.rope,
        "PAGE": shape.page, "TILE": choice.tile, "BLOCK": choice.block, "STAGES": choice.stages,
        "DEPTH": choice.stages, "DEPENDENT": capability >= (9, 0),
        "FP8": shape.fp8, "NATIVE": capability >= (8, 9), "SPARSE": shape.sparse,
    }  # fmt: skip
    types = {"q": "*bf16", "cache": "*bf16", "out": "*bf16", "scale_log2": "fp32"}
    if shape.fp8:
        types |= {"cache": "*i16", "cache_scale": "*fp32"}
    else:
        sizes["cache_scale"] = None
    types |= (
        dict.fromkeys(INTS, "*i32") | dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(NUMBERS, "i32")
    )
    height = min(choice.tile, shape.page)
    if choice.kernel == "hopper" and shape.fp8:
        from mla_decode import hopper_fp8

        width = hopper_fp8.WIDTH
        sizes |= {"WIDTH": width, "FETCH_REGISTERS": hopper_fp8.FETCH_REGISTERS}
        types["q"] = "*i32"
        for name, wide in {"boxes": width, "rope_boxes": shape.rope // 2}.items():
            types[name] = f"tensordesc<i16[{height}, {wide}],{hopper_fp8.box_layout(wide)!r}>"
        function, source = hopper_fp8.attend, GluonASTSource
    elif choice.kernel == "hopper":
        from mla_decode import hopper

        sizes |= {
            "WIDTH": hopper.WIDTH,
            "BOXES": hopper.BOXES,
            "FETCH_REGISTERS": hopper.FETCH_REGISTERS,
        }
        types["boxes"] = f"tensordesc<bf16[{height}, {hopper.WIDTH}],{hopper.box_layout()!r}>"
        function, source = hopper.attend, GluonASTSource
    elif choice.kernel == "seesaw":
        from mla_decode import hopper, seesaw

        types["part_out"] = "*fp16"
        odd, fetch = seesaw.REGISTERS
        sizes |= {"ODD_REGISTERS": odd, "FETCH_REGISTERS": fetch}
        for name, rows in {"boxes": min(hopper.TILE, shape.page), "q_boxes": hopper.TILE}.items():
            types[name] = f"tensordesc<bf16[{rows}, {hopper.WIDTH}],{hopper.box_layout()!r}>"
        function, source = seesaw.attend, GluonASTSource
    else:
        from mla_decode import portable

        function, source = portable.attend, ASTSource
    names = function.arg_names
    made = source(
        fn=function,
        signature={n: "constexpr" if n in sizes else types[n] for n in names},
        constexprs={(names.index(n),): value for n, value in sizes.items() if n in names},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in ALIGNED if n in names},
    )
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = {"num_warps": choice.warps}
    if choice.kernel == "hopper" and choice.programs == 2:
        options["maxnreg"] = hopper_fp8.REGISTERS
    return triton.compile(made, target=target, options=options)


if __name__ == "__main__":
    main(sys.argv[1])
