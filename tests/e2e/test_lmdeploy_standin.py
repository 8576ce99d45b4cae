"""The whole command on LMDeploy's API, over a stand-in that a CPU runs: sound, and with what may be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.e2e import standin

pytestmark = pytest.mark.e2e

MODEL = "deepseek-v2-lite/plain-rope"
INSIDE = ("weights.coverage", "weights.values", "golden.routes", "layers.local", "cache.latent")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the environment, a PATH with an nvidia-smi, and texts that were computed once."""
    folder = tmp_path_factory.mktemp("standin")
    os.environ["DSPATCH_CACHE"] = str(support.shared_cache())
    standin.environment(folder)
    standin.fake_gpu(folder / "bin")
    return folder


def command(desk: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dspatch", "conformance", *words],
        cwd=desk,
        env={
            **os.environ,
            "PATH": f"{desk / 'bin'}:{os.environ['PATH']}",
            "DSPATCH_CACHE": str(support.shared_cache()),
            "DSPATCH_WORK": str(desk / "work"),
            "STANDIN_KNOWN": str(desk / "known"),
            **variables,
        },
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def report(desk: Path, code: int, *words: str, **variables: str) -> Mapping[str, Any]:
    """The report of a run that ends with this code."""
    given = ("--engine", "lmdeploy", "--env", "env", "--variant", MODEL)
    done = command(desk, *given, *words, **variables)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    [file] = (desk / "work/conformance").glob("*/report/report.json")
    found: Mapping[str, Any] = json.loads(file.read_text())
    return found


def results(found: Mapping[str, Any], status: str) -> dict[str, str]:
    return {row["check"]: row["note"] for row in found["results"] if row["status"] == status}


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_a_sound_engine_passes_what_its_answers_show_and_nothing_else(
    desk: Path, backend: str
) -> None:
    found = report(desk, 0, "--backend", backend)
    assert found["facts"]["backend"] == backend
    assert not results(found, "fail")
    passed = results(found, "pass")
    assert {"golden.fp32", "decode.paged", "decode.scored", "decode.late"} < passed.keys()
    assert ("prefill.chunked" in passed) == (backend == "turbomind")
    assert {"prefix.hit", "batch.mixed", "sampling.seed", "greedy.forced"} < passed.keys()
    assert "logits alone" in passed["golden.fp32"]
    hidden = results(found, "not-shown")
    assert set(INSIDE) < hidden.keys()
    assert all(hidden.values())


WRONG = [
    ("wrong-logits", "turbomind", "golden.fp32", ""),
    ("nan", "turbomind", "greedy.forced", "not finite"),
    ("breaks-off", "turbomind", "greedy.forced", "not finite"),
    ("ends-late", "turbomind", "decode.late", "broke off"),
    ("ends-drawn", "turbomind", "sampling.distribution", "0 of 1 tokens that were asked for"),
    ("never-cuts", "turbomind", "prefill.chunked", "no prompt was prefilled in chunks"),
    ("prefix-lost", "turbomind", "prefix.hit", ""),
    ("prefix-lost", "pytorch", "prefix.hit", ""),
    ("seed-unheeded", "turbomind", "sampling.seed", ""),
    ("foreign-row", "pytorch", "decode.scored", ""),
    ("runner-up", "turbomind", "greedy.forced", "its own logits do not prefer"),
    ("runner-up", "pytorch", "greedy.forced", "its own logits do not prefer"),
    ("answers-errors", "pytorch", "engine.start", "INTERNAL_ENGINE_ERROR"),
    ("dies-late", "turbomind", "engine.run", "the process died after `alone`"),
    ("aborts", "turbomind", "engine.start", "SIGABRT"),
    ("falls-back", "turbomind", "engine.start", "TurboMind was asked for"),
]


@pytest.mark.parametrize(("fault", "backend", "check", "said"), WRONG)
def test_what_is_wrong_with_an_engine_is_caught_by_the_check_that_names_it(
    desk: Path, fault: str, backend: str, check: str, said: str
) -> None:
    found = results(report(desk, 60, "--backend", backend, STANDIN_FAULT=fault), "fail")
    assert said in found[check], found
    if check in ("prefix.hit", "sampling.seed", "decode.scored", "decode.late", "prefill.chunked"):
        assert found.keys() == {check}


def test_a_release_that_gives_no_logits_is_told_and_shows_nothing(desk: Path) -> None:
    found = report(desk, 60, STANDIN_LACKS="output_logits")
    assert "output_logits" in results(found, "fail")["engine.start"]
    assert not results(found, "pass").keys() - {"engine.start"}


def test_a_model_that_the_engine_refuses_is_no_failure_and_no_pass(desk: Path) -> None:
    found = report(desk, 14, STANDIN_FAULT="refuses")
    assert not results(found, "pass")
    assert not results(found, "fail")
    assert "one group" in results(found, "not-shown")["engine.start"]


def test_every_fault_that_can_be_planted_from_outside_is_caught(desk: Path) -> None:
    given = ("--engine", "lmdeploy", "--env", "env", "--variant", MODEL)
    done = command(desk, *given, "--selftest", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["report"]
    outcomes = {row["fault"]: row["outcome"] for row in found["faults"]}
    assert "missed" not in outcomes.values()
    caught = {name for name, outcome in outcomes.items() if outcome == "caught"}
    assert {"norm-at-one", "experts-exchanged", "prefixes-not-cached"} < caught
    assert {"foreign-row-after-scoring", "requests-exchanged", "seed-ignored"} < caught
    assert "runner-up-picked" in caught
    assert outcomes["router-wrong-in-decoding"] == "not-shown"
    assert not results(found["clean"], "fail")


def test_options_that_say_nothing_of_this_engine_are_refused(desk: Path) -> None:
    lone = command(desk, "--env", "env", "--backend", "pytorch")
    assert lone.returncode == 2
    assert "--engine lmdeploy" in lone.stderr
    several = command(
        desk, "--engine", "lmdeploy", "--env", "env", "--backend", "pytorch", "--tp", "2"
    )
    assert several.returncode == 2
    wide = command(desk, "--engine", "lmdeploy", "--env", "env", "--dtype", "float32")
    assert wide.returncode == 62
    assert "--dtype bfloat16" in wide.stderr


def test_without_a_gpu_it_is_said_where_to_run_it(desk: Path) -> None:
    done = command(desk, "--engine", "lmdeploy", "--env", "env", PATH="/usr/bin:/bin")
    assert done.returncode == 53
    assert "on a machine with a GPU" in done.stderr
