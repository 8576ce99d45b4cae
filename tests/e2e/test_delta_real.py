"""Deltas of the real vLLM: small, and what they make of the published wheels is the overlay, file by file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch import pins
from dspatch.index import download
from tests.unit import deltakit

pytestmark = pytest.mark.e2e


def dspatch(folder: Path, *arguments: str) -> dict:
    environment = {**os.environ, "DSPATCH_WORK": str(folder / "work")}
    command = [sys.executable, "-m", "dspatch", *arguments, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told: dict = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_delta_makes_the_overlay_of_the_published_wheel(tmp_path: Path, target: str) -> None:
    words = ("--engine", "vllm", "--rev", "v0.27.1", "--target", target)
    dspatch(tmp_path, "apply", *words)
    told = dspatch(tmp_path, "build-wheel", *words, "--delta")
    base = pins.base_for(pins.load("vllm", "v0.27.1"), target)
    original = download(base.project, base.filename, base.sha256)
    # On CPU a compiled extension of ours is most of it.
    assert told["delta"]["size"] < original.stat().st_size / 200
    site = deltakit.install(original, tmp_path / "one", "--no-compile")
    other = deltakit.install(Path(told["path"]), tmp_path / "other", "--no-compile")
    before = deltakit.files(site)
    python = site.parents[2] / "bin" / "python"
    subprocess.run([python, told["delta"]["path"]], check=True)
    own = ("RECORD", *deltakit.ORIGINS)
    left, right = (
        {path: seen for path, seen in deltakit.files(place).items() if not path.endswith(own)}
        for place in (site, other)
    )
    assert left == right
    verified = ("wheel", "verify", "--python", str(python), "--base-wheel", str(original))
    assert dspatch(tmp_path, *verified)["passed"]
    subprocess.run([python, told["delta"]["path"], "--undo"], check=True)
    assert deltakit.files(site) == before
