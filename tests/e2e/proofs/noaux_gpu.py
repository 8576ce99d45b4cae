"""TurboMind's gate as it was compiled, called on a GPU and held against PyTorch.

    python noaux_gpu.py LIBRARY [JUDGE]

with a PyTorch for CUDA. LIBRARY is a shared object with `invokeMoeGate_NoAuxTC` of namespace turbomind
(`_turbomind*.so`, or the gate's objects linked alone); JUDGE the folder of `judge.py`. Prints JSON: of each
case of judge.py, how many tokens have experts whose choice is worse than the reference's by more than 1e-6,
weights that are off by more than 1e-5, or lie elsewhere than with the tokens of their experts.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import torch

sys.path.insert(0, sys.argv[2] if len(sys.argv) > 2 else str(Path(__file__).parents[1] / "gate"))
import judge

TILES = 16  # kMoeGateMaxTiles of moe_utils_v2.h


def symbol(path: str) -> str:
    """The gate's name as the compiler wrote it."""
    said = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    )
    return next(name for name in said.stdout.split() if "invokeMoeGate_NoAuxTC" in name)


def run(library: ctypes.CDLL, name: str, case: judge.Case) -> dict[str, torch.Tensor]:
    """What the gate writes for a case, whose tokens are padded to a multiple of four as the engine does."""
    tokens, experts = case.logits.shape
    padded = (tokens + 3) // 4 * 4
    whole = {"dtype": torch.int32, "device": "cuda"}
    made = {
        "f2n": torch.full((case.top * tokens,), -7, **whole),
        "f2E": torch.full((case.top * tokens,), -7, **whole),
        "en2f": torch.full((case.top, tokens), -7, **whole),
        "offsets": torch.full((experts + 1,), -7, **whole),
        "scales": torch.full((case.top, tokens), float("nan"), device="cuda"),
        "masks": torch.full((experts, padded), 77, dtype=torch.int8, device="cuda"),
        "accum": torch.full((experts * TILES,), 77, **whole),
    }
    given = {
        "logits": case.logits.cuda().contiguous(),
        "valid": torch.ones(tokens, dtype=torch.bool, device="cuda"),
        "bias": case.bias.cuda().contiguous(),
    }
    at = [ctypes.c_void_p(each.data_ptr()) for each in (*made.values(), *given.values())]
    sizes = [tokens, padded, experts, case.top, case.groups, case.kept, 0, experts]
    scale = ctypes.c_float(judge.SCALE)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    getattr(library, name)(*at, *sizes, ctypes.c_bool(True), scale, ctypes.c_bool(True), stream)
    torch.cuda.synchronize()
    return {key: value.cpu() for key, value in made.items()}


def wrong(got: dict[str, torch.Tensor], case: judge.Case) -> int:
    """How many tokens the gate routes worse, weighs otherwise, or sorts to another expert."""
    tokens, experts = case.logits.shape
    found, bad = judge.misrouted(got["masks"][:, :tokens], got["scales"], case)
    return int((bad | ~sorted_right(got, found, experts)).sum())


def sorted_right(got: dict[str, torch.Tensor], found: torch.Tensor, experts: int) -> torch.Tensor:
    """Of each token, whether its places among the experts' tokens are those of its experts."""
    counts = torch.bincount(found.flatten(), minlength=experts)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    place = got["en2f"].T.long()
    inside = (place >= ends[found]) & (place < ends[found + 1])
    token = got["f2n"].long()[place.clamp(0, found.numel() - 1)]
    same = token == torch.arange(len(found))[:, None]
    return (inside & same).all(1) & bool((got["offsets"].long() == ends).all())


def planted(library: ctypes.CDLL, name: str, case: judge.Case) -> int:
    """What the judgement says of the same gate asked for one group: it must be many."""
    other = judge.Case(**{**vars(case), "groups": 1, "kept": 1})
    return wrong(run(library, name, other), case)


def main() -> None:
    """Judge the gate of a library."""
    path = sys.argv[1]
    library, name = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), symbol(path)
    found = {case.name: wrong(run(library, name, case), case) for case in judge.cases()}
    first = next(judge.cases())
    where = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    seen = {"tokens": {case.name: len(case.logits) for case in judge.cases()}, "wrong": found}
    print(
        json.dumps({**where, **seen, "planted: one group for eight": planted(library, name, first)})
    )


if __name__ == "__main__":
    main()
