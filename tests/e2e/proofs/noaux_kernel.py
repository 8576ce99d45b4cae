"""The whole kernel of TurboMind's gate, from a patched tree, run on a CPU and held against PyTorch.

    python noaux_kernel.py TREE

with the Python of the oracle's environment. The kernel's own text is compiled with what CUDA gives it, for
blocks of 1, 8 and 64 threads: scores, masking, choice, weights and what it writes, as it stands. Prints JSON: of each
case of `gate/judge.py`, how many tokens have experts whose choice is worse than the reference's by more than 1e-6, or
weights that are off by more than 1e-5, or wrong counts of tokens an expert.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "gate"))
import judge

SHIM = """
#include <math.h>
#include <stdint.h>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#define __global__
#define __shared__
struct Index { int x; };
static thread_local Index threadIdx;
static Index blockIdx, blockDim;
static std::mutex mutex;
static std::condition_variable all;
static int arrived = 0, turn = 0;
static void __syncthreads()
{
    std::unique_lock<std::mutex> lock(mutex);
    const int now = turn;
    if (++arrived == blockDim.x) { arrived = 0; ++turn; all.notify_all(); return; }
    all.wait(lock, [&] { return turn != now; });
}
static void atomicAdd(int* at, int by) { *at += by; }
template<class T> static T blockReduceMax(T) { throw 0; }
template<class T> static T blockReduceSum(T) { throw 0; }
char smem[1 << 16];
#include "moe_gate_groups.h"
using namespace turbomind;
#include "kernel.inl"
extern "C" void gate(float* scales, int8_t* masks, int* accum, const float* logits, const bool* valid,
                     const float* bias, int tokens, int padded, int experts, int top, int groups, int kept,
                     float scale, int threads)
{
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < tokens; ++blockIdx.x) {
        auto run = [&](int thread) {
            threadIdx.x = thread;
            MoeGateNoAuxTCKernel(scales, masks, accum, logits, VALID bias, tokens, padded, experts, top, groups, kept,
                                 true, scale, 20, 1, true);
        };
        std::vector<std::thread> block;
        for (int i = 1; i < threads; ++i) block.emplace_back(run, i);
        run(0);
        for (auto& each : block) each.join();
    }
}
"""


def compiled(tree: Path) -> ctypes.CDLL:
    """The kernel of a tree as a library; 0.16.0 knows tokens that are not valid, 0.13.0 does not."""
    folder, place = Path(mkdtemp()), tree / "src/turbomind/kernels/gemm"
    text = (place / "moe_utils_v2.cu").read_text()
    begin = text.index("__global__ void MoeGateNoAuxTCKernel")
    kernel = text[begin : text.index("\n}\n", begin) + 3]
    (folder / "kernel.inl").write_text(kernel)
    (folder / "moe_gate_groups.h").write_text((place / "moe_gate_groups.h").read_text())
    shim = SHIM.replace("VALID", "valid," if "token_mask" in kernel else "")
    (folder / "gate.cpp").write_text(shim)
    words = [
        "g++",
        "-std=c++17",
        "-O1",
        "-pthread",
        "-fPIC",
        "-shared",
        "gate.cpp",
        "-o",
        "gate.so",
    ]
    subprocess.run(words, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "gate.so"))


def wrong(library: ctypes.CDLL, case: judge.Case, threads: int) -> int:
    """How many tokens the kernel routes worse, or weighs otherwise."""
    tokens, experts = case.logits.shape
    scales, accum = torch.zeros(case.top, tokens), torch.zeros(experts, dtype=torch.int32)
    masks = torch.full((experts, tokens), -1, dtype=torch.int8)
    valid = torch.ones(tokens, dtype=torch.bool)
    given = [scales, masks, accum, case.logits.contiguous(), valid, case.bias.contiguous()]
    at = [ctypes.c_void_p(each.data_ptr()) for each in given]
    sizes = [tokens, tokens, experts, case.top, case.groups, case.kept]
    library.gate(*at, *sizes, ctypes.c_float(judge.SCALE), threads)
    found, bad = judge.misrouted(masks, scales, case)
    counts = torch.bincount(found.flatten(), minlength=experts)
    return int(bad.sum()) + int((counts != accum).sum())


def main() -> None:
    """Judge the kernel of one tree."""
    library = compiled(Path(sys.argv[1]))
    found = {}
    for case in judge.cases():
        found[case.name] = wrong(library, case, 1)
        few = judge.Case(**{**vars(case), "logits": case.logits[:20]})
        for threads in (8, 64):
            found[f"{case.name}, {threads} threads"] = wrong(library, few, threads)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
