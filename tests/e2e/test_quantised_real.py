"""On the real engine: weights in FP8 blocks are multiplied by as they are meant, on a CPU without AMX."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.conformance import quantised, render, sources, suite
from dspatch.console import Console
from dspatch.engines import Options
from dspatch.engines.environment import for_wheel
from dspatch.errors import UncomputableError
from dspatch.stages import apply, build
from dspatch.stages.request import Request

pytestmark = pytest.mark.e2e

REV, MODEL = "v0.32.0", "deepseek-v3/fp8"
ASKED = ("engine.start", "weights.values", "weights.quantised", "kernels.quantised", "layers.local")


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
    found = suite.run(
        python=python, out=tmp_path / "out", variants=[MODEL], options=Options(dtype="bfloat16")
    )
    status = {result.check: result.status for result in found.results}
    assert found.failures() == [], render.as_markdown(found)
    assert {status[name] for name in ASKED} == {"pass"}
