"""A small model is served as the build of the engine takes it: on a CPU, and on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import engines
from dspatch.conformance import small
from dspatch.engines import vllm
from dspatch.stages import calibrate, prove_api
from dspatch.stages.prove_any import Subject


def subject(target: str) -> Subject:
    return Subject(
        engine="vllm", version="1", target=target, where="x", key="x", python=lambda _: Path("x")
    )


@pytest.mark.parametrize(
    ("target", "dtype", "model"),
    [("cpu", "float32", "deepseek-v3"), ("cuda", "bfloat16", "deepseek-v3/sixteen-heads")],
)
def test_dtype_and_heads_go_by_what_an_engine_was_built_for(
    target: str, dtype: str, model: str
) -> None:
    fits = prove_api.fitting(subject(target))
    assert fits.dtype == dtype
    assert fits.model("deepseek-v3") == model
    assert fits.model("deepseek-v3/saved") == "deepseek-v3/saved"
    assert small.case(model).config["num_attention_heads"] >= (16 if target == "cuda" else 1)


@pytest.mark.parametrize(("target", "heads"), [("cpu", 4), ("cuda", 16)])
def test_limits_are_measured_with_heads_that_kernels_take(target: str, heads: int) -> None:
    found = calibrate._models([subject(target)], calibrate.Wanted())
    assert {small.case(name).config["num_attention_heads"] for name in found} == {heads}
    named = calibrate.Wanted(models=("deepseek-v3/saved",))
    assert calibrate._models([subject(target)], named) == ["deepseek-v3/saved"]


@pytest.mark.parametrize("share", [None, 0.25])
def test_two_servers_share_a_gpu(share: float | None) -> None:
    started = vllm.service(
        Path("python"), Path("model"), name="small", port=1, share=share,
        parsers=engines.Parsers(tools="t", reasoning="r"), options=engines.Options(dtype="bfloat16"),
    )  # fmt: skip
    words = dict(zip(started.argv, started.argv[1:], strict=False))
    assert words["--dtype"] == "bfloat16"
    assert words.get("--gpu-memory-utilization") == (str(share) if share else None)
