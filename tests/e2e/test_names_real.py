"""On the real engine: its loaders take the names of published checkpoints, and what is wrong with them shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.conformance import names
from dspatch.conformance.published import Published, Tensors
from dspatch.console import Console
from dspatch.engines import Options
from dspatch.engines.environment import for_wheel
from dspatch.stages import apply, build
from dspatch.stages.request import Request

pytestmark = pytest.mark.e2e

# Of 256, one a group: that is a minute of looking names up, and nothing but numbers changes.
EXPERTS = 8
LOST = "model.layers.3.mlp.experts.5.up_proj.weight"
RENAMED = "model.layers.61.eh_proj.weight"
EXTRA = "model.layers.7.self_attn.q_c_proj.weight"


def _cut(case: Published) -> Published:
    """A published checkpoint with few experts: every layer and every kind of name is there."""
    kept = {}
    for name, (shape, dtype) in case.tensors.items():
        expert = name.partition(".experts.")[2].partition(".")[0]
        if not expert or int(expert) < EXPERTS:
            routed = ".mlp.gate." in name
            kept[name] = ([EXPERTS, *shape[1:]] if routed else shape, dtype)
    return replace(case, config={**case.config, "n_routed_experts": EXPERTS}, tensors=kept)


def _with(
    case: Published, change: Callable[[Tensors], dict[str, tuple[list[int], str]]]
) -> Published:
    return replace(case, tensors=change(case.tensors))


def test_v3_s_names_go_to_the_main_model_and_the_draft_and_faults_show() -> None:
    applied = apply.run(Request(engine="vllm", rev="v0.32.0"), Console(as_json=True))
    wheel: Path = build.run(applied.job, Console(as_json=True)).path
    (sound,) = map(_cut, names.cases(["deepseek-v3"], "vllm", "0.32.0"))
    assert sound.form == "fp8"
    cases = [
        sound,
        _with(sound, lambda own: {n: v for n, v in own.items() if n != LOST}),
        _with(sound, lambda own: {n.replace("eh_proj", "he_proj"): v for n, v in own.items()}),
        _with(sound, lambda own: {**own, EXTRA: ([8, 8], "bfloat16")}),
        # A config that says nothing of it has the main model swallow the prediction layer.
        replace(sound, config={**sound.config, "num_nextn_predict_layers": 0}),
    ]
    report = names.run(cases, python=for_wheel("vllm", wheel).python, options=Options())
    each = [report.results[at : at + 4] for at in range(0, len(report.results), 4)]
    assert [one.status for one in each[0]] == ["pass"] * 4
    assert "1 of them both" in each[0][0].note
    lost, renamed, extra, swallowed = each[1:]
    assert lost[1].status == "fail"
    assert "layers.3.mlp.experts" in lost[1].note
    assert renamed[0].status == "fail"
    assert "he_proj" in renamed[0].note
    assert extra[0].status == "fail"
    assert "q_c_proj" in extra[0].note
    assert swallowed[0].status == "fail"
    assert "layers.61" in swallowed[0].note
