"""On the real engine: every planted fault is caught, and full heads are not taken for latents."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import pins
from dspatch.bench.alarms import Plan
from dspatch.conformance import checks, render, selftest, suite
from dspatch.conformance.selftest import Selftest
from dspatch.console import Console
from dspatch.engines.environment import for_wheel
from dspatch.index import download
from dspatch.stages import alarms, apply, build, prove_any
from dspatch.stages.request import Request

pytestmark = pytest.mark.e2e

REV = "v0.27.1"
MODELS = ("deepseek-v2-lite", "deepseek-v3")


def python_of(wheel: Path) -> Path:
    """The interpreter of a wheel's environment."""
    return for_wheel("vllm", wheel).python


def test_every_planted_fault_is_caught(tmp_path: Path) -> None:
    applied = apply.run(Request(engine="vllm", rev=REV), Console(as_json=True))
    wheel = build.run(applied.job, Console(as_json=True)).path
    found = selftest.run(python=python_of(wheel), out=tmp_path / "out", variants=MODELS)
    assert found.clean.ok, render.as_markdown(found.clean)
    assert found.clean.count("not-shown") == 0
    assert not_caught(found) == []
    assert misplaced(found) == []
    assert found.ok


def misplaced(found: Selftest) -> list[str]:
    """The faults that a diagnosis looks for elsewhere than where they were planted."""
    return [
        f"{one.variant}: {one.fault.name}: at {one.found_at}, planted at {one.fault.at}"
        for one in found.planted
        if one.misplaced
    ]


def not_caught(found: Selftest) -> list[str]:
    """The faults that were missed, or not even planted."""
    return [
        f"{one.variant}: {one.fault.name}: {one.outcome} {one.refused}"
        for one in found.planted
        if one.outcome != "caught"
    ]


def test_full_heads_pass_every_check_but_the_one_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = pins.base_for(pins.load("vllm", REV), "cpu")
    stock = download(base.project, base.filename, base.sha256)
    refused = suite.run(python=python_of(stock), out=tmp_path / "mla", variants=["deepseek-v3"])
    assert [result.check for result in refused.failures()] == ["engine.start"]
    assert "MLA is not supported on CPU" in refused.failures()[0].note

    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    # A count of false alarms sees it too: once, as the engine starts once for both sets of prompts.
    heads = prove_any.in_environment(str(python_of(stock)), "vllm")
    plan = Plan(models=("deepseek-v3",), checkpoints=1, prompt_sets=2)
    count = alarms.run(heads, plan, tmp_path / "heads.json", Console(as_json=True)).count
    assert [alarm.split(": ")[:2] for alarm in count.alarms] == [
        ["deepseek-v3#0.0", "cache.latent"]
    ]
    (row,) = count.rows
    assert (row.pairs, row.alarmed, dict(row.unshown)) == (2, 1, {})
    config = plan.drawn()[0][0].config
    asked = checks.fitting(config)
    # Of the first set all, with a start in place of the one that failed; of the second what prompts have a part in.
    assert row.passed == len(asked) + len(set(asked) & set(checks.prompted(config)))
