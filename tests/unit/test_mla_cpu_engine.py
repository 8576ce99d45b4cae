"""The benchmark of MLA on CPU: two engines that answer its questions, without an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import mla_cpu_engine

# As much of vLLM as the worker asks of it; each request has its first token after one step.
VLLM = """
import os
from types import SimpleNamespace

class SamplingParams:
    def __init__(self, **options): pass

class Engine:
    def __init__(self): self.names = []
    def abort_request(self, names): self.names = []
    def add_request(self, name, prompt, params): self.names.append(name)
    def step(self):
        print("a line of the engine's own", flush=True)
        one = SimpleNamespace(token_ids=[1])
        return [SimpleNamespace(request_id=name, outputs=[one]) for name in self.names]

class LLM:
    def __init__(self, folder, **options):
        if "REFUSED" in os.environ:
            raise SystemExit("no such model")
        self.llm_engine = Engine()
    def collective_rpc(self, name):
        full = "VLLM_MLA_DISABLE" in os.environ
        spec = SimpleNamespace(page_size_bytes=16 * (2000 if full else 1000), block_size=16)
        return [{"layer 0": spec, "layer 1": spec}]
"""


@pytest.fixture(autouse=True)
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def run(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    few = ["--context", "8", "--batch", "2", "--repeats", "2", "--steps", "4"]
    monkeypatch.setattr(sys, "argv", ["x", sys.executable, sys.executable, *few, *more])
    mla_cpu_engine.main()


def test_both_engines_are_measured_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--json", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [(r["engine"], r["batch"], r["cache_bytes_per_token"]) for r in rows] == [
        ("stock, MLA disabled", 2, 4000),
        ("patched", 2, 2000),
    ]
    assert all(0 < r["step_ms_min"] <= r["step_ms"] <= r["step_ms_max"] for r in rows)
    out = capfd.readouterr()
    assert "a line of the engine's own" not in out.out
    assert out.out.splitlines()[-1].startswith("patched")


def test_an_engine_that_ends_is_told_below_its_messages(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFUSED", "1")
    with pytest.raises(SystemExit, match="its messages are above"):
        run(monkeypatch)
    assert "no such model" in capfd.readouterr().err
