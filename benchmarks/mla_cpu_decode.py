"""The decode operator of MLA on CPU: ours in PyTorch beside upstream's compiled kernel, in one process.

    PYTHON benchmarks/mla_cpu_decode.py --heads 16 --contexts 1024 8192

PYTHON is that of an environment with a patched vLLM 0.32.0 (`dspatch run` makes one, and names it in the
receipt of conformance). Both read the same paged cache and are held to a reference in float64 first. They take
turns, upstream's kernel twice in each: the difference of the two is the spread. What is told is the time that a
tenth of the calls keep below, as other work on the machine only ever adds. Planning is not timed: a step does it
once for all layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

RANK, ROPE, BLOCK = 512, 64, 16
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


def case(torch: Any, ours: Any, *, heads: int, context: int, batch: int, dtype: Any) -> Any:
    """Both operators on one question, each as a function without arguments that returns [batch, heads, RANK]."""
    blocks = -(-context // BLOCK)
    cache = torch.randn(batch * blocks, BLOCK, RANK + ROPE).to(dtype)
    table = torch.randperm(batch * blocks).view(batch, blocks).to(torch.int32)
    query = torch.randn(batch, heads, RANK + ROPE).to(dtype)
    lengths, scale = torch.full((batch,), context, dtype=torch.int32), (128 + ROPE) ** -0.5
    groups = ours.plan_decode(lengths.tolist(), table, BLOCK, torch.get_num_threads())

    def upstream() -> Any:
        out = query.new_empty(batch, heads, RANK)
        torch.ops._C.mla_decode_kvcache(out, query, cache, scale, table, lengths)
        return out

    def patched() -> Any:
        return ours.decode_attention(query, cache, groups, scale, RANK)[0]

    rows = cache.view(-1, BLOCK, RANK + ROPE)[table.long()].view(batch, -1, RANK + ROPE)
    rows = rows[:, :context].double()
    weights = (query.double() @ rows.mT * scale).softmax(-1)
    return upstream, patched, weights @ rows[..., :RANK]


def times(functions: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Milliseconds of each call of each function, in turns, for about so many seconds."""
    found: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 5:
        for took, function in zip(found, functions, strict=True):
            start = time.perf_counter()
            function()
            took.append((time.perf_counter() - start) * 1e3)
    return found


def main() -> None:
    """Print one row a shape: the fast tenth of each operator, the ratio and the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    asked = parser.parse_args()
    torch, ours = import_module("torch"), import_module("vllm.v1.attention.ops.cpu_mla")
    import_module("vllm.platforms").current_platform.import_kernels()
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    print("| dtype | batch | context | upstream, ms | ours, ms | upstream / ours | spread |")
    print("|---|---|---|---|---|---|---|")
    for dtype in ("float32", "bfloat16"):
        for batch in asked.batches:
            for context in asked.contexts:
                upstream, patched, right = case(
                    torch, ours,
                    heads=asked.heads, context=context, batch=batch, dtype=getattr(torch, dtype),
                )  # fmt: skip
                for function in (upstream, patched):
                    off = ((function().double() - right).norm() / right.norm()).item()
                    assert off < TOLERANCE[dtype], f"{function.__name__} is off by {off}"
                taken = times([upstream, patched, upstream], asked.seconds)
                one, mine, two = (statistics.quantiles(each, n=10)[0] for each in taken)
                both = (one + two) / 2
                told = f"{both:.2f} | {mine:.2f} | {both / mine:.2f} | {abs(one - two) / both:.0%}"
                print(f"| {dtype} | {batch} | {context} | {told} |", flush=True)


if __name__ == "__main__":
    main()
