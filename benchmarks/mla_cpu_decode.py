"""The decode operator of MLA on CPU: ours, compiled and in PyTorch, beside upstream's kernel, in one process.

    PYTHON benchmarks/mla_cpu_decode.py --heads 16 --contexts 1024 8192

PYTHON is that of an environment with a patched vLLM (`dspatch run` makes one, and names it in the receipt of
conformance); where that has no kernel of its own for MLA on CPU, ours in PyTorch is the peer. All read the same
paged cache and are held to a reference in float64 first. They take turns, the peer twice in each: the difference
of the two is the spread. What is told is the time that a
tenth of the calls keep below, as other work on the machine only ever adds. Planning is not timed: a step does it
once for all layers. With --cpu-time it is the calling thread's own time that is told, which a loaded machine lengthens
less; that wants --threads 1. DSPATCH_CPU_MLA_KERNEL names the compiled kernel that is timed, the best one unless set.
"""

from __future__ import annotations

import argparse
import statistics
import time
import unittest.mock
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

RANK, ROPE, BLOCK = 512, 64, 16
Operator = Callable[[], Any]
Clock = Callable[[], float]
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


def case(torch: Any, ops: Any, *, heads: int, context: int, batch: int, dtype: Any) -> Any:
    """The operators on one question, the peer first: functions without arguments that return [batch, heads, RANK]."""
    blocks = -(-context // BLOCK)
    cache = torch.randn(batch * blocks, BLOCK, RANK + ROPE).to(dtype)
    table = torch.randperm(batch * blocks).view(batch, blocks).to(torch.int32)
    query = torch.randn(batch, heads, RANK + ROPE).to(dtype)
    lengths, scale = torch.full((batch,), context, dtype=torch.int32), (128 + ROPE) ** -0.5
    asked = lengths.tolist(), table, BLOCK, torch.get_num_threads()
    step = ops.plan_decode(*asked)
    assert not isinstance(step, list), "no compiled kernel serves here"
    with unittest.mock.patch.object(ops.cpu_mla_compiled, "chosen", return_value=None):
        groups = ops.plan_decode(*asked)

    def upstream() -> Any:
        out = query.new_empty(batch, heads, RANK)
        torch.ops._C.mla_decode_kvcache(out, query, cache, scale, table, lengths)
        return out

    def compiled() -> Any:
        return ops.decode_attention(query, cache, step, scale, RANK)[0]

    def in_torch() -> Any:
        return ops.decode_attention(query, cache, groups, scale, RANK)[0]

    rows = cache.view(-1, BLOCK, RANK + ROPE)[table.long()].view(batch, -1, RANK + ROPE)
    rows = rows[:, :context].double()
    weights = (query.double() @ rows.mT * scale).softmax(-1)
    found = {"upstream": upstream, "PyTorch": in_torch, "compiled": compiled}
    if not hasattr(torch.ops._C, "mla_decode_kvcache"):
        del found["upstream"]
    return found, weights @ rows[..., :RANK]


def times(functions: list[Operator], seconds: float, clock: Clock) -> list[list[float]]:
    """Milliseconds of each call of each function by a clock, in turns, for about so many seconds."""
    found: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 5:
        for took, function in zip(found, functions, strict=True):
            start = clock()
            function()
            took.append((clock() - start) * 1e3)
    return found


def main() -> None:
    """Print one row a shape: the fast tenth of each operator, the ratio and the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cpu-time", action="store_true")
    asked = parser.parse_args()
    if asked.cpu_time and asked.threads != 1:
        parser.error("--cpu-time wants --threads 1: it does not see what other threads do")
    clock = time.thread_time if asked.cpu_time else time.perf_counter
    torch, ops = import_module("torch"), operators()
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    print(f"{ops.cpu_mla_compiled.chosen().name}, {asked.heads} heads, {asked.threads} threads")
    shapes = product(TOLERANCE, asked.batches, asked.contexts)
    for number, (dtype, batch, context) in enumerate(shapes):
        functions, right = case(
            torch, ops,
            heads=asked.heads, context=context, batch=batch, dtype=getattr(torch, dtype),
        )  # fmt: skip
        hold(functions, right, TOLERANCE[dtype])
        if number == 0:
            print(head(list(functions)))
        told = row(functions, asked.seconds, clock)
        print(f"| {dtype} | {batch} | {context} | {told} |", flush=True)


def operators() -> Any:
    """The patched release's operators of MLA on CPU, wherever it has them, with upstream's kernels loaded."""
    if find_spec("vllm.v1") is None:
        return import_module("vllm.attention.ops.cpu_mla")
    import_module("vllm.platforms").current_platform.import_kernels()
    return import_module("vllm.v1.attention.ops.cpu_mla")


def hold(functions: Mapping[str, Operator], right: Any, bound: float) -> None:
    """Refuse to time an operator that is not right, by its relative error."""
    for name, function in functions.items():
        off = ((function().double() - right).norm() / right.norm()).item()
        assert off < bound, f"{name} is off by {off}"


def head(names: list[str]) -> str:
    """The head of the table."""
    cells = [*(f"{name}, ms" for name in names), *(f"{names[0]} / {name}" for name in names[1:])]
    line = f"| dtype | batch | context | {' | '.join(cells)} | spread |"
    return f"{line}\n|{'---|' * (line.count('|') - 1)}"


def row(functions: Mapping[str, Operator], seconds: float, clock: Clock) -> str:
    """The fast tenth of each, in milliseconds, the peer's ratio to the others, and its spread against itself."""
    peer, *others = functions.values()
    taken = times([peer, *others, peer], seconds, clock)
    one, *rest, two = (statistics.quantiles(t, n=10, method="inclusive")[0] for t in taken)
    both = (one + two) / 2
    told = [f"{both:.2f}", *(f"{t:.2f}" for t in rest), *(f"{both / t:.2f}" for t in rest)]
    return " | ".join([*told, f"{abs(one - two) / both:.0%}"])


if __name__ == "__main__":
    main()
