"""Compile the portable kernels with another Triton for cards that are not here; print what came of it, as JSON.

    PYTHONPATH=FOLDER-OF-TRITON:. python tests/mla/tritons.py FOLDER-OF-mla_decode [all]

From a cache in the query's dtype in pages of 64, as vLLM's older releases decode; with `all`, also fp8, small pages and
lists of slots. As the engine calls them, so that Triton specialises them as it will there; only the driver is one
of our own, which has a target and no card.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import MockTensor

from tests.mla import cubin

# Pages as the backend asks for them, smaller than a tile, and lists of slots.
PAGES = {"64": (64, False), "16": (16, False), "slots": (64, True)}


class Target:
    """A driver that compiles for a card; each card is a device of its own, as Triton keeps a target a device."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.number = 10 * capability[0] + capability[1]

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.number, 32)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, *_: Any) -> int:
        return 0


class Argument(MockTensor):  # type: ignore[misc]
    """A tensor that is nowhere, at an address that is a multiple of 16."""

    @staticmethod
    def data_ptr() -> int:
        return 0


def main(folder: str) -> None:
    """Compile every portable choice for every card, in every kind of page, and what plans and merges."""
    sys.path.insert(0, folder)
    kernels = list(_all(whole="all" in sys.argv[2:]))
    print(json.dumps({"triton": triton.__version__, "kernels": kernels}, indent=1))


def _all(*, whole: bool) -> Iterator[dict[str, Any]]:
    for card, (capability, shared) in cubin.CARDS.items():
        driver.set_active(Target(capability))
        yield from ({"card": card, "limit": shared, **one} for one in _of(capability, whole=whole))


def _of(capability: tuple[int, int], *, whole: bool) -> Iterator[dict[str, Any]]:
    from mla_decode.choice import _CHOICES

    for _, oldest, choice in _CHOICES:
        if choice.kernel != "portable" or capability < oldest:
            continue
        for name, (page, sparse) in PAGES.items():
            if choice.whole_pages and name != "64":
                continue
            if not whole and (name != "64" or choice.fp8):
                continue
            kernel = _attend(choice, capability, page, sparse)
            yield {
                "block": choice.block, "tile": choice.tile, "stages": choice.stages, "warps": choice.warps,
                "fp8": choice.fp8, "pages": name, **cubin.facts(kernel),
            }  # fmt: skip
    for name, kernel in _around():
        yield {"kernel": name, **cubin.facts(kernel)}


def _attend(choice: Any, capability: tuple[int, int], page: int, sparse: bool) -> Any:
    from mla_decode import dependent, portable

    heads = min(128, 2 * choice.block) if choice.block == 64 else choice.block
    cached = torch.int16 if choice.fp8 else torch.bfloat16
    tensors = [torch.bfloat16, cached, *[torch.int32] * 3, torch.bfloat16, *[torch.float32] * 3]
    return portable.attend.warmup(
        *map(Argument, tensors),
        Argument(torch.float32) if choice.fp8 else None,
        0.1, 4096, 64, 64 * 576, 576,
        ROWS=heads, HEADS=heads, LATENT=512, ROPE=64, PAGE=page, TILE=choice.tile, BLOCK=choice.block,
        STAGES=choice.stages, DEPENDENT=dependent.KNOWN and capability >= (9, 0), FP8=choice.fp8,
        NATIVE=capability >= (8, 9), SPARSE=sparse, num_warps=choice.warps, grid=(1, 1),
    )  # fmt: skip


def _around() -> Iterator[tuple[str, Any]]:
    from mla_decode import combine, plan

    ints, floats = Argument(torch.int32), Argument(torch.float32)
    yield "combine", combine.combine.warmup(
        floats, None, floats, ints, Argument(torch.bfloat16), floats,
        ROWS=16, LATENT=512, COLUMNS=64, PARTS=32, DEPENDENT=False, num_warps=1, grid=(1,),
    )  # fmt: skip
    steps = (ints, ints, ints, 5, 4096)
    yield (
        "plan",
        plan._plan.warmup(
            *steps, 132, 66, 0, 1, TILE=64, FIXED=2, BLOCK=64, PER=8, num_warps=4, grid=(1,)
        ),
    )
    yield (
        "plan_alone",
        plan._plan_alone.warmup(
            *steps, TILE=64, PARTS=32, LEAST=4, BLOCK=64, num_warps=4, grid=(1,)
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1])
