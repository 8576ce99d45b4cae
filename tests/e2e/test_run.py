"""The README's main command on the real engine, from an empty work folder to a passing report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch import pins, process
from dspatch.conformance import render
from dspatch.engines.environment import for_wheel
from dspatch.errors import ConformanceError, NoGpuError
from dspatch.index import download

pytestmark = pytest.mark.e2e

# The trees that the shipped series makes of the pinned sources; a change of one is a change of the series.
TREES = json.loads((Path(__file__).parents[1] / "golden" / "trees.json").read_text())


def dspatch(folder: Path, *arguments: str, code: int = 0) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "dspatch", *arguments, "--json"],
        cwd=folder,
        env={**os.environ, "DSPATCH_WORK": str(folder / "work")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


def results(report: dict, check: str) -> dict[str, str]:
    return {r["variant"]: r["status"] for r in report["results"] if r["check"] == check}


def test_run_proves_the_flagship(tmp_path: Path) -> None:
    done = dspatch(tmp_path, "run", "--engine", "vllm", "--rev", "v0.27.1", "--target", "cpu")
    report = done["report"]
    assert report["ok"]
    for model in ("deepseek-v2-lite", "deepseek-v2", "deepseek-v3"):
        for check in (
            "weights.coverage", "weights.values", "golden.fp32", "golden.routes", "greedy.forced",
            "decode.paged", "prefill.chunked", "prefix.hit", "cache.latent",
        ):  # fmt: skip
            assert results(report, check)[model] == "pass", (model, check)
    assert set(results(report, "engine.start").values()) == {"pass"}
    wheel = Path(done["wheel"]["path"])
    python = for_wheel("vllm", wheel).python
    code = "import vllm; from vllm.platforms import current_platform as p; print(vllm.__version__, p.is_cpu())"
    shown = process.run([python, "-c", code], env={"PYTHONPATH": ""})
    assert f"{done['wheel']['version']} True" in shown.stdout
    states = dspatch(tmp_path, "status")["vllm-0.27.1-cpu-deepseek"]
    assert [s["state"] for s in states] == ["current", "current", "passed"]
    folder = tmp_path / "work/jobs/vllm-0.27.1-cpu-deepseek/report"
    assert {path.name for path in folder.iterdir()} == set(render.FILES)
    twins = dspatch(tmp_path, "conformance", "--variant", "deepseek-v3", "--reference-ops")
    assert twins["report"]["ok"]


@pytest.mark.parametrize("way", ["--env", "--wheel"])
def test_the_stock_flagship_refuses(tmp_path: Path, way: str) -> None:
    base = pins.base_for(pins.load("vllm", "v0.27.1"), "cpu")
    stock = download(base.project, base.filename, base.sha256)
    subject = for_wheel("vllm", stock).path if way == "--env" else stock
    words = ("conformance", way, str(subject), "--variant", "deepseek-v3/saved")
    done = dspatch(tmp_path, *words, code=ConformanceError.exit_code)
    assert [r["status"] for r in done["report"]["results"]].count("fail") == 1
    (found,) = done["report"]["diagnoses"]
    assert "MLA is not supported on CPU" in found["symptom"]["detail"]
    assert found["causes"][0]["finding"] == "vllm-cpu-mla-refused"
    assert found["causes"][0]["standing"] == "confirmed"
    assert [Path(path).name for path in done["files"]] == list(render.FILES)


def test_run_proves_the_next_pin_by_one_model(tmp_path: Path) -> None:
    done = dspatch(tmp_path, "run", "--rev", "v0.32.0", "--variant", "deepseek-v3")
    assert done["report"]["ok"]
    assert results(done["report"], "golden.fp32")["deepseek-v3"] == "pass"


@pytest.mark.parametrize("job", TREES)
def test_the_series_makes_the_same_trees_everywhere(job: str, tmp_path: Path) -> None:
    rev, _, target = job.partition(" ")
    done = dspatch(tmp_path, "apply", "--rev", rev, "--target", target)
    assert done["tree"] == TREES[job]


def test_a_cuda_wheel_is_built_and_verified_without_a_gpu(tmp_path: Path) -> None:
    words = ("--engine", "vllm", "--rev", "v0.27.1", "--target", "cuda")
    dspatch(tmp_path, "apply", *words)
    built = dspatch(tmp_path, "build-wheel", *words)
    assert built["wheel"]["version"].startswith("0.27.1+dspatch.")
    assert dspatch(tmp_path, "wheel", "verify")["passed"]
    if shutil.which("nvidia-smi") is None:
        error = dspatch(tmp_path, "conformance", *words, code=NoGpuError.exit_code)
        assert "NVIDIA GPU" in error["what"]
