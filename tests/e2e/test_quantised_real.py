"""On the real engine: weights in FP8 blocks are multiplied by as they are meant, on a CPU without AMX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch import paths, process
from dspatch.conformance import checks, faults, oracle, quantised, small, sources, suite
from dspatch.console import Console
from dspatch.engines import Options, silent
from dspatch.engines.environment import for_wheel
from dspatch.errors import UncomputableError
from dspatch.stages import apply, build
from dspatch.stages.request import Request

pytestmark = pytest.mark.e2e

REV, MODEL = "v0.32.0", "deepseek-v3/fp8"
PLANTED = ("block-scales-inverted", "last-block-dropped", "absorbed-unscaled")
ASKED = ("engine.start", "weights.values", "weights.quantised", "kernels.quantised", "layers.local")

# A projection whose weights are not where tensors are made: on PyTorch's `meta`, as a GPU's are not on the CPU.
ELSEWHERE = """
import torch
from vllm_worker import dequantised
class Method:
    def apply(self, module, rows, bias):
        assert rows.device == module.weight.device, rows.device
        return rows @ module.weight.T
class Projection(torch.nn.Module):
    input_size, output_size, params_dtype, quant_method = 200, 96, torch.bfloat16, Method()
    def __init__(self):
        super().__init__()
        weight = torch.empty(96, 200, dtype=torch.bfloat16, device="meta")
        self.weight = torch.nn.Parameter(weight)
model = torch.nn.ModuleDict({"a": Projection()})
print(*dequantised.weights(None, model, {"config": {}})["dequantised|a.weight"].shape)
print(*dequantised.products(None, model, {"config": {}})["multiplied|a.weight"].shape)
"""


def test_rows_go_where_a_projection_s_weights_are() -> None:
    python = oracle.ensure().python
    found = process.run(
        [python, "-c", ELSEWHERE],
        env={**oracle.variables(), "PYTHONPATH": str(paths.PACKAGE / "engines" / "workers")},
    )
    assert found.stdout.split("\n")[:2] == ["96 200", "96 83"]


@pytest.mark.skipif(
    "avx512_bf16" not in quantised.processor(), reason="the kernels need AVX-512 with bfloat16"
)
def test_fp8_blocks_are_multiplied_by_as_they_are_meant(tmp_path: Path) -> None:
    applied = apply.run(Request(engine="vllm", rev=REV), Console(as_json=True))
    wheel = build.run(applied.job, Console(as_json=True)).path
    python = for_wheel("vllm", wheel).python
    asked = sources.asked_of(python, "vllm")
    quantised.need_served([MODEL], "vllm", "0.32.0", "cpu", asked)
    if "amx_tile" not in quantised.processor():
        # What the wheel would be without the patch, by the answer of such a source.
        with pytest.raises(UncomputableError, match="on this machine's CPU"):
            quantised.need_served(
                [MODEL], "vllm", "0.32.0", "cpu", lambda name: ("confirmed", name)
            )
    case = small.case(MODEL)
    bench = suite.make_bench(
        python=python,
        out=tmp_path / "out",
        engine="vllm",
        options=Options(dtype="bfloat16"),
        progress=silent,
    )
    golden = bench.oracle.golden([case])[0]
    planted = [one for one in faults.FAULTS if one.name in PLANTED]
    trial = replace(
        suite.trial(case, golden),
        probes=("local", "dequantised", "multiplied"),
        hook_faults=[{"name": f.name, "run": f.run, "hook": f.plants} for f in planted],
    )
    ran = suite.observe(bench, [trial])[0]
    assert not ran.error, ran.facts
    seen = suite.measured(bench, [(golden, ran)])[0]
    status = {result.check: result.status for result in suite.results(seen)}
    assert {status[name] for name in ASKED} == {"pass"}, status
    assert "fail" not in status.values(), status
    for fault in planted:
        under = replace(seen, runs={**seen.runs, fault.run: f"fault/{fault.name}:"})
        assert checks.judge(under, [fault.caught_by])[0].status == "fail", fault.name
