"""MLA decode kernels side by side on one NVIDIA GPU: ours, FlashMLA, FA3 and vLLM's Triton kernel.

    python benchmarks/mla_decode.py prepare FOLDER [--wheel WHEEL]    anywhere: peers and our kernels
    python benchmarks/mla_decode.py run FOLDER -o RESULTS.json         where the GPU is
        [--mode fp8]     a cache in fp8 against ours in bf16; [--mode sparse]  2048 slots a token
    python benchmarks/mla_decode.py show RESULTS.json [--plot PLOT.svg]

`run` needs torch 2.11 and Triton 3.6, and neither dspatch nor a network. Every kernel is held to
an fp64 reference first. Calls are captured 20 to 50 to a CUDA graph, each on inputs of its own,
which are larger than the L2 together; the L2 is flushed before each replay; kernels take turns,
and ours runs twice in each turn: the difference of the two is the spread. The limit of a shape is
the larger of its bytes over copy bandwidth and its operations over the rate of a bf16 matrix
product, both measured in the same process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SHORT = (1, 1024), (1, 4096), (1, 16384), (1, 65536), (4, 4096), (16, 1024), (16, 4096)
LONG = (16, 16384), (32, 8192), (64, 8192), (128, 1024), (128, 4096), (128, 8192)
SHAPES = [(heads, b, s) for heads in (16, 32, 64, 128) for b, s in (*SHORT, *LONG)]
SPARSE = [(heads, b, 8192) for heads in (16, 32, 64, 128) for b in (1, 4, 16, 64, 128)]
MOST = 2048  # slots a token, as DeepSeek-V3.2 has it
PAGE, LATENT, ROPE = 64, 512, 64
POOL = 300_000_000  # bytes of inputs that one replay reads at least, or 50 calls
REPLAYS = 15
OURS, AGAIN, BF16 = "ours", "ours again", "ours bf16"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One shape: microseconds a call of each kernel, median of the replays; bytes and operations.

    kernel: ours; where fp8 is held against bf16, that of bf16, too.
    """

    heads: int
    batch: int
    tokens: int
    q_len: int
    kernel: str
    bytes: int
    flops: int
    calls: int
    plan_us: float
    us: dict[str, float]
    best_us: dict[str, float]
    wrong: dict[str, list[str]]
    failed: dict[str, str] = field(default_factory=dict)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare")
    prepare.add_argument("folder", type=Path)
    prepare.add_argument("--wheel", type=Path)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("-o", "--output", type=Path, required=True)
    run.add_argument("--heads", type=int, nargs="*", default=[16, 128])
    run.add_argument("--mode", choices=["dense", "fp8", "sparse"], default="dense")
    run.add_argument("--kernel", choices=["portable", "hopper", "seesaw"], help="not the chosen")
    show = commands.add_parser("show")
    show.add_argument("results", type=Path, nargs="+")
    show.add_argument("--plot", type=Path)
    options = parser.parse_args()
    if options.command == "prepare":
        _prepare(options.folder, options.wheel)
    elif options.command == "run":
        _run(options.folder, options.output, options.heads, options.mode, options.kernel)
    else:
        _show([json.loads(path.read_text()) for path in options.results], options.plot)


def _prepare(folder: Path, wheel: Path | None) -> None:
    from benchmarks import mla_peers
    from tests.mla import rendered

    mla_peers.fetch(folder, wheel)
    rendered.write(folder / "mla_decode")


def _run(folder: Path, output: Path, heads: Sequence[int], mode: str, kernel: str | None) -> None:
    import torch

    from benchmarks import mla_peers

    if not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU is visible to torch; `show` reads results without one")
    sys.path.insert(0, str(folder))
    bench = Bench(importlib.import_module("mla_decode"), mla_peers.Peers(folder), mode, kernel)
    results: dict[str, Any] = {**bench.machine(), "mode": mode}
    print(results, flush=True)
    results["rows"] = []
    for shape in SPARSE if mode == "sparse" else SHAPES:
        if shape[0] in heads:
            row = bench.row(*shape)
            results["rows"].append(asdict(row))
            print(line(asdict(row), results), flush=True)
            output.write_text(json.dumps(results, indent=1) + "\n")


class Bench:
    """One process's measurements."""

    def __init__(self, kernels: Any, peers: Any, mode: str, kernel: str | None) -> None:
        import torch

        self.torch = torch
        self.kernels = kernels
        self.peers = peers
        self.mode = mode
        self.kernel = kernel
        self._flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self._stream = torch.cuda.Stream()

    def machine(self) -> dict[str, Any]:
        """What it runs on, and the two ceilings and the floor, measured."""
        import triton

        torch = self.torch
        half = torch.randn(512 << 20, device="cuda")
        other = torch.empty_like(half)
        a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
        copy = self._graph([lambda: torch.neg(half, out=other)] * 5)
        product = self._graph([lambda: torch.mm(a, b)] * 5)
        floors = {n: self._graph([self._empty(n)] * 50) for n in (1, 2)}
        medians = {}
        for name, graph in {"copy": copy, "product": product, **floors}.items():
            medians[name] = statistics.median(self._replay(graph) for _ in range(REPLAYS))
        return {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "copy_gbps": 2 * half.nbytes * 5 / medians["copy"] / 1e3,
            "matmul_tflops": 2 * 8192**3 * 5 / medians["product"] / 1e6,
            "floor_us": {str(n): medians[n] / 50 for n in (1, 2)},
        }

    def _empty(self, kernels: int) -> Callable[[], Any]:
        from tests.mla import empty

        return lambda: empty.launch(kernels)

    def row(self, heads: int, batch: int, tokens: int, q_len: int = 1) -> Row:
        """Measure one shape; all requests are of equal length."""
        torch = self.torch
        read = min(tokens, MOST) if self.mode == "sparse" else tokens
        row_bytes = (LATENT + ROPE) * (1 if self.mode == "fp8" else 2)
        size = batch * (read * row_bytes + q_len * heads * (2 * LATENT + ROPE) * 2)
        calls = max(20, min(50, -(-POOL // size)))
        count = min(calls, max(3, -(-POOL // size)))
        steps = self._steps(heads, batch, tokens, q_len, count)
        each, origin = self._calls(heads, batch, tokens, q_len, steps)
        wrong, failed, graphs = {}, {}, {}
        for name in each[0]:
            try:
                wrong[name] = self._wrong(each[0][name], origin.get(name, steps[0]))
                graphs[name] = self._graph([each[i % len(each)][name] for i in range(calls)])
            except Exception as error:  # a peer that refuses a shape is named, not hidden
                failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
                if name == OURS:
                    raise
        graphs[AGAIN] = graphs[OURS]
        planning = self._graph([self._plan] * 50)
        plan_us = statistics.median(self._replay(planning) for _ in range(REPLAYS)) / 50
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(REPLAYS):
            for name, graph in graphs.items():
                times[name].append(self._replay(graph) / calls)
        del graphs, planning, self._plan, each, origin, steps
        torch.cuda.empty_cache()
        return Row(
            heads=heads,
            batch=batch,
            tokens=tokens,
            q_len=q_len,
            kernel=self._chosen,
            bytes=size,
            flops=2 * batch * heads * q_len * read * (2 * LATENT + ROPE),
            calls=calls,
            plan_us=plan_us,
            us={name: statistics.median(t) for name, t in times.items()},
            best_us={name: min(t) for name, t in times.items()},
            wrong=wrong,
            failed=failed,
        )

    def _steps(
        self, heads: int, batch: int, tokens: int, q_len: int, count: int, fp8: bool | None = None
    ) -> list[Any]:
        from tests.mla import cases

        made: dict[str, Any] = {"heads": heads, "q_len": q_len, "page": PAGE, "device": "cuda"}
        made["fp8"] = self.mode == "fp8" if fp8 is None else fp8
        steps = (cases.step([tokens] * batch, **made, seed=seed) for seed in range(count))
        if self.mode == "sparse":
            return [cases.sparse(step, MOST, seed=seed) for seed, step in enumerate(steps)]
        return list(steps)

    def _calls(
        self, heads: int, batch: int, tokens: int, q_len: int, steps: list[Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Each kernel's call on each step; and the first step of those that have steps of their own."""
        mine: list[dict[str, Any]] = [{OURS: call} for call in self._ours(steps)]
        origin = {}
        if self.mode == "fp8":
            plan, chosen = self._plan, self._chosen
            others = self._steps(heads, batch, tokens, q_len, len(steps), fp8=False)
            for each, call in zip(mine, self._ours(others), strict=True):
                each[BF16] = call
            self._plan, self._chosen = plan, f"{chosen}, bf16 {self._chosen}"
            origin[BF16] = others[0]
        for each, step in zip(mine, steps, strict=True):
            if self.mode == "sparse":
                each.update(self.peers.sparse_calls(step))
            elif self.mode == "dense":
                each.update(self.peers.calls(step, tokens))
        return mine, origin

    def _ours(self, steps: list[Any]) -> list[Any]:
        """Our call on each step; one decoder and one plan, as all layers of a step share it."""
        shape = self.kernels.Shape(**steps[0].shape)
        card = self.kernels.Card.of(self.torch.device("cuda"))
        fitting = self.kernels.choices(shape, card.capability, card.shared_memory)
        wanted = [c for c in fitting if c.kernel == (self.kernel or c.kernel)] or fitting
        decoder = self.kernels.Decoder(shape, "cuda", len(steps[0].lengths), choice=wanted[0])
        decoder.plan(steps[0].lengths, steps[0].table)
        self._chosen = decoder.choice.kernel
        self._plan = lambda: decoder.plan(steps[0].lengths, steps[0].table)
        results = [s.result() for s in steps]

        def call(s: Any, out: Any, lse: Any) -> Callable[[], Any]:
            from tests.mla.cases import SCALE

            return lambda: decoder(s.q, s.cache, s.table, s.lengths, SCALE, out, lse, s.scale)

        return [call(s, *result) for s, result in zip(steps, results, strict=True)]

    def _wrong(self, call: Callable[[], Any], step: Any) -> list[str]:
        """What is wrong with a call's results, in the first and the last request."""
        from tests.mla import cases

        out, lse = call()
        some = sorted({0, len(step.lengths) - 1})
        want, want_lse = cases.truth(self.kernels.reference, step.of(some))
        return cases.faults(out[some], want_lse if lse is None else lse[some], want, want_lse)

    def _graph(self, calls: Sequence[Callable[[], Any]]) -> Any:
        torch = self.torch
        with torch.cuda.stream(self._stream):
            for call in calls[:2]:
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            kept = []
            with torch.cuda.graph(graph, stream=self._stream):
                for call in calls:
                    kept.append(call())
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        return graph

    def _replay(self, graph: Any) -> float:
        """Microseconds of one replay from a cold L2."""
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3


def limit_us(row: dict[str, Any], machine: dict[str, Any]) -> float:
    """The least time that a shape can take by the ceilings of the process that measured it."""
    memory = row["bytes"] / machine["copy_gbps"] / 1e3
    return max(memory, row["flops"] / machine["matmul_tflops"] / 1e6)


def line(row: dict[str, Any], machine: dict[str, Any]) -> str:
    """A row as one line of a table."""
    limit, ours = limit_us(row, machine), row["us"][OURS]
    spread = abs(row["us"][AGAIN] - ours) / ours
    peers = [name for name in row["us"] if name not in (OURS, AGAIN)]
    cells = [f"{row['us'][p]:.1f} ({ours / row['us'][p]:.2f})" for p in peers]
    rates = f"{row['bytes'] / ours / 1e3:.0f} | {row['flops'] / ours / 1e6:.0f}"
    shape = f"{row['heads']} | {row['batch']} | {row['tokens']} | {row['kernel']}"
    wrong = {name: said for name, said in row["wrong"].items() if said} or ""
    shares = f"{100 * limit / ours:.0f} % | {100 * spread:.1f} % | {row['plan_us']:.1f}"
    notes = f"{wrong or row['failed'] or ''}".strip("{}")
    return f"| {shape} | {ours:.1f} | {rates} | {shares} | {' | '.join(cells)} | {notes} |"


def _show(all_results: list[dict[str, Any]], plot: Path | None) -> None:
    for results in all_results:
        peers = [name for name in results["rows"][0]["us"] if name not in (OURS, AGAIN)]
        said = {key: value for key, value in results.items() if key != "rows"}
        heads = [
            "heads",
            "batch",
            "tokens",
            "kernel",
            "us",
            "GB/s",
            "TFLOP/s",
            "of limit",
            "A/A",
            "plan us",
        ]
        print(said, "\n")
        print("| " + " | ".join([*heads, *(f"{p} us (ours / it)" for p in peers), ""]) + " |")
        print("|" + "---|" * (len(heads) + len(peers) + 1))
        print("\n".join(line(row, results) for row in results["rows"]), "\n")
    if plot is not None:
        _plot(all_results, plot)


def _plot(all_results: list[dict[str, Any]], path: Path) -> None:
    """The fraction of the limit over the shapes, one panel a head count."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    rows = [(row, results) for results in all_results for row in results["rows"]]
    heads = sorted({row["heads"] for row, _ in rows})
    figure, panels = plt.subplots(len(heads), 1, figsize=(9, 3 * len(heads)), squeeze=False)
    for panel, count in zip(panels[:, 0], heads, strict=True):
        mine = [(row, results) for row, results in rows if row["heads"] == count]
        names = [name for name in mine[0][0]["us"] if name != AGAIN]
        for name in names:
            shares = [
                100 * limit_us(r, m) / r["us"][name] if name in r["us"] else None for r, m in mine
            ]
            panel.plot(shares, marker="o", label=name)
        panel.set_xticks(
            range(len(mine)), [f"{r['batch']}×{r['tokens'] // 1024}k" for r, _ in mine]
        )
        panel.set_ylabel(f"% of the limit, {count} heads")
        panel.set_ylim(0, 100)
        panel.grid(alpha=0.3)
    panels[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
