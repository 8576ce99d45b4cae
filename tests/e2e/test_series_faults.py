"""Every fault that the series mends: seen in the stock wheel, gone from the patched one."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from dspatch import pins, process
from dspatch.conformance import small, suite
from dspatch.conformance.report import CheckResult, Report
from dspatch.console import Console
from dspatch.engines import Options, vllm
from dspatch.engines.environment import for_wheel
from dspatch.index import download
from dspatch.stages import apply, build
from dspatch.stages.request import Request

pytestmark = pytest.mark.e2e

DIFFERS = ""  # the engine runs, and its numbers are not the oracle's
BIAS = "e_score_correction_bias"

# Of each pin: the small model that shows a fault, and what the stock wheel makes of it. For 0.27.1
# it runs on full heads, since without the series it refuses latent attention whatever the model.
FAULTS = {
    "v0.27.1": {
        "deepseek-v2-lite/plain-rope": DIFFERS,
        "deepseek-v3/plain-rope": DIFFERS,
        "deepseek-v3/saved": BIAS,
    },
    "v0.32.0": {
        "deepseek-v2-lite/plain-rope": DIFFERS,
        "deepseek-v3/plain-rope": DIFFERS,
        "deepseek-v3/saved": BIAS,
        "deepseek-v3/odd-heads": "Head dimension 128 is not supported by MLA",
    },
}
WITHOUT_FAULT = "deepseek-v3"
# Of each of these: where a diagnosis must find it, by itself, and the finding that it names first.
CAUSES = {
    DIFFERS: ("0.rope", "vllm-cpu-rope-strides", "confirmed"),
    BIAS: ("1.router_choice", "vllm-v3-topk-method", "confirmed"),
    "Head dimension 128 is not supported by MLA": ("", "vllm-cpu-mla-one-shape", "confirmed"),
}


@pytest.mark.parametrize("rev", FAULTS)
def test_the_stock_wheel_has_each_fault(
    rev: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rev == "v0.27.1":
        monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    report = judged(wheels(rev)[0], rev, tmp_path)
    for model, refusal in FAULTS[rev].items():
        started = result(report, model, "engine.start")
        if refusal:
            assert refusal in stopped(report, model)
        else:
            assert started.status == "pass", started.note
            assert result(report, model, "golden.fp32").status == "fail", model
        assert cause(report, model) == CAUSES[refusal], model
    assert result(report, WITHOUT_FAULT, "golden.fp32").status == "pass"
    assert WITHOUT_FAULT not in {one.variant for one in report.diagnoses}


@pytest.mark.parametrize("rev", FAULTS)
def test_the_patched_wheel_has_none(rev: str, tmp_path: Path) -> None:
    report = judged(wheels(rev)[1], rev, tmp_path)
    assert report.ok, report.failures()


# A machine with AMX tiles, as far as choosing a backend goes, and one without a model to load.
CHOOSE = """
import sys, torch
torch.cpu._is_amx_tile_supported = lambda: True
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.attention.selector import AttentionSelectorConfig
config = EngineArgs(
    model=sys.argv[1], dtype=sys.argv[2], skip_tokenizer_init=True, enforce_eager=True
).create_engine_config()
size, block = config.model_config.get_head_size(), config.cache_config.block_size
wanted = AttentionSelectorConfig(size, config.model_config.dtype, "auto", block, use_mla=True)
print("chosen", current_platform.get_attn_backend_cls(None, wanted).rsplit(".")[-1], block)
"""
# Of each dtype: what the stock wheel takes, and what the patched one.
CHOICES = {
    "bfloat16": ("AMXMLABackend 128", "AMXMLABackend 128"),
    "float32": ("AMXMLABackend 128", "CPUMLABackend 16"),
}


@pytest.mark.parametrize("dtype", CHOICES)
def test_amx_is_chosen_only_where_its_kernels_fit(dtype: str, tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("only x86 has AMX")
    config = small.case("deepseek-v2-lite").config
    (tmp_path / "config.json").write_text(json.dumps(dict(config)))
    for wheel, wanted in zip(wheels("v0.32.0"), CHOICES[dtype], strict=True):
        python = for_wheel("vllm", wheel).python
        environment = vllm.environment(Options())
        done = process.run([python, "-c", CHOOSE, tmp_path, dtype], env=environment)
        assert f"chosen {wanted}" in done.stdout


def wheels(rev: str) -> tuple[Path, Path]:
    """The stock and the patched wheel of a pin."""
    base = pins.base_for(pins.load("vllm", rev), "cpu")
    applied = apply.run(Request(engine="vllm", rev=rev), Console(as_json=True))
    stock = download(base.project, base.filename, base.sha256)
    return stock, build.run(applied.job, Console(as_json=True)).path


def judged(wheel: Path, rev: str, folder: Path) -> Report:
    """The suite's report on a wheel, for the models of a pin's faults and one without any."""
    environment = for_wheel("vllm", wheel)
    models = [WITHOUT_FAULT, *FAULTS[rev]]
    return suite.run(python=environment.python, out=folder / "out", variants=models)


def result(report: Report, model: str, check: str) -> CheckResult:
    """The one result of a check on a model."""
    return next(r for r in report.results if (r.variant, r.check) == (model, check))


def stopped(report: Report, model: str) -> str:
    """Why the engine did not start with a model, or stopped half way."""
    checks = ("engine.start", "engine.run")
    found = [r for r in report.failures() if r.variant == model and r.check in checks]
    return found[0].note if found else ""


def cause(report: Report, model: str) -> tuple[str, str, str]:
    """Where the diagnosis of a model finds its fault; its first cause's finding, and its standing."""
    (found,) = (one for one in report.diagnoses if one.variant == model)
    return found.symptom.place, found.causes[0].finding, found.causes[0].standing
