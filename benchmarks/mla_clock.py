"""Times calls on a GPU in CUDA graphs, each replay from a cold L2; and what the card can do at most."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

REPLAYS = 15


class Clock:
    """One process's clock; all graphs are captured on one stream."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self._stream = torch.cuda.Stream()

    def ceilings(self) -> dict[str, Any]:
        """What it runs on, and the two ceilings and the floor, measured."""
        import triton

        from tests.mla import empty

        torch = self._torch
        half = torch.randn(512 << 20, device="cuda")
        other = torch.empty_like(half)
        a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
        copy = self.median(self.graph([lambda: torch.neg(half, out=other)] * 5))
        product = self.median(self.graph([lambda: torch.mm(a, b)] * 5))
        one, two = (self.median(self.graph([lambda n=n: empty.launch(n)] * 50)) for n in (1, 2))
        return {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "copy_gbps": 2 * half.nbytes * 5 / copy / 1e3,
            "matmul_tflops": 2 * 8192**3 * 5 / product / 1e6,
            "floor_us": {"1": one / 50, "2": two / 50},
        }

    def graph(self, calls: Sequence[Callable[[], Any]]) -> Any:
        """The calls as one graph, replayed once."""
        torch = self._torch
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

    def median(self, graph: Any) -> float:
        """Microseconds of a replay, the median of all."""
        return statistics.median(self._replay(graph) for _ in range(REPLAYS))

    def in_turns(self, graphs: dict[str, Any], calls: int) -> dict[str, list[float]]:
        """Microseconds a call in each replay; the graphs take turns."""
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(REPLAYS):
            for name, graph in graphs.items():
                times[name].append(self._replay(graph) / calls)
        return times

    def _replay(self, graph: Any) -> float:
        torch = self._torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3
