"""`dspatch conformance --engine lmdeploy` on a real card, with the LMDeploy that an environment has.

    DSPATCH_TEST_LMDEPLOY=/path/of/an/environment pytest -m gpu tests/gpu/test_lmdeploy_conformance.py

On a machine without an index DSPATCH_CACHE and DSPATCH_ORACLE are set as docs/conformance.md says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

MODELS = {
    "turbomind": [
        "deepseek-v2-lite/sixteen-heads/bfloat16",
        "deepseek-v2-lite/sixteen-heads",
        "deepseek-v2/sixteen-heads-in-groups/bfloat16",
    ],
    "pytorch": ["deepseek-v2-lite/sixteen-heads/bfloat16", "deepseek-v3/sixteen-heads"],
}
# What no engine may fail, and every one shows.
SHOWN = {
    "golden.fp32",
    "logits.topk",
    "greedy.forced",
    "decode.paged",
    "decode.scored",
    "prefix.hit",
}


@pytest.mark.parametrize("backend", sorted(MODELS))
def test_an_engine_computes_what_transformers_computes(backend: str, tmp_path: Path) -> None:
    environment = os.environ.get("DSPATCH_TEST_LMDEPLOY")
    assert environment, "gpu tests were asked for, and DSPATCH_TEST_LMDEPLOY names no environment"
    named = [word for model in MODELS[backend] for word in ("--variant", model)]
    done = subprocess.run(
        [
            sys.executable, "-m", "dspatch", "conformance", "--engine", "lmdeploy", "--env", environment,
            "--backend", backend, *named,
        ],
        env={**os.environ, "DSPATCH_WORK": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("conformance/*/report/report.json")
    rows = json.loads(file.read_text())["results"]
    for model in MODELS[backend]:
        passed = {
            row["check"] for row in rows if (row["variant"], row["status"]) == (model, "pass")
        }
        assert passed >= SHOWN
