"""Every fault that the series mends: seen in the stock wheel, gone from the patched one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import pins
from dspatch.conformance import suite
from dspatch.conformance.report import CheckResult, Report
from dspatch.console import Console
from dspatch.engines import vllm
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


@pytest.mark.parametrize("rev", FAULTS)
def test_the_stock_wheel_has_each_fault(
    rev: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rev == "v0.27.1":
        monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    base = pins.base_for(pins.load("vllm", rev), "cpu")
    report = judged(download(base.project, base.filename, base.sha256), rev, tmp_path)
    for model, refusal in FAULTS[rev].items():
        started = result(report, model, "engine.start")
        if refusal:
            assert started.status == "fail", model
            assert refusal in started.note
        else:
            assert started.status == "pass", started.note
            assert result(report, model, "golden.fp32").status == "fail", model
    assert result(report, WITHOUT_FAULT, "golden.fp32").status == "pass"


@pytest.mark.parametrize("rev", FAULTS)
def test_the_patched_wheel_has_none(rev: str, tmp_path: Path) -> None:
    console = Console(as_json=True)
    applied = apply.run(Request(engine="vllm", rev=rev), console)
    report = judged(build.run(applied.job, console).path, rev, tmp_path)
    assert report.ok, report.failures()


def judged(wheel: Path, rev: str, folder: Path) -> Report:
    """The suite's report on a wheel, for the models of a pin's faults and one without any."""
    environment = for_wheel("vllm", wheel, vllm.requirements(wheel))
    models = [WITHOUT_FAULT, *FAULTS[rev]]
    return suite.run(python=environment.python, out=folder / "out", variants=models)


def result(report: Report, model: str, check: str) -> CheckResult:
    """The one result of a check on a model."""
    return next(r for r in report.results if (r.variant, r.check) == (model, check))
