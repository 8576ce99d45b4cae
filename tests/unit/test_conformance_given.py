"""A checkpoint of the user's own: read whoever wrote it, refused where it cannot be proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dspatch.conformance import given, oracle, parallel, small, suite
from dspatch.conformance.small import Case
from dspatch.engines import Options
from dspatch.errors import CheckpointError


def folder(path: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    path.mkdir(exist_ok=True)
    own = dict(small.case("deepseek-v3").config) if config is None else config
    (path / "config.json").write_text(json.dumps({**own, **changes}))
    save_file({"model.norm.weight": np.ones(4, np.float32)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3"])
def test_what_is_read_is_what_the_small_model_states(tmp_path: Path, name: str) -> None:
    config = dict(small.case(name).config)
    found = given.case(folder(tmp_path / "own", config)).config
    ignored = {"torch_dtype", "rope_scaling"}
    differing = {
        k
        for k in config.keys() | found.keys()
        if k not in ignored and config.get(k) != found.get(k)
    }
    assert differing == set()
    wanted = {k: v for k, v in (config["rope_scaling"] or {}).items() if v is not None}
    assert {k: v for k, v in found["rope_scaling"].items() if k in wanted} == wanted


def test_a_config_as_transformers_saves_it_means_the_same(tmp_path: Path) -> None:
    config = dict(small.case("deepseek-v3").config)
    scaling = config.pop("rope_scaling")
    saved = {
        k: v for k, v in config.items() if k not in ("topk_method", "scoring_func", "rope_theta")
    }
    rope = {**scaling, "rope_type": scaling["type"], "rope_theta": config["rope_theta"]}
    found = given.case(folder(tmp_path / "own", {**saved, "rope_parameters": rope})).config
    assert (found["topk_method"], found["scoring_func"]) == ("noaux_tc", "sigmoid")
    assert found["rope_theta"] == config["rope_theta"]
    assert found["rope_scaling"]["type"] == "yarn"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architecture"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"kv_lora_rank": "512"}, "kv_lora_rank is '512'"),
        ({"n_routed_experts": True}, "n_routed_experts is True"),
        ({"kv_lora_rank": None, "v_head_dim": None}, "lacks kv_lora_rank, v_head_dim"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "RoPE"),
        ({"vocab_size": 100}, "vocabulary"),
        ({"max_position_embeddings": 100}, "positions"),
    ],
)
def test_what_cannot_be_proven_says_so(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError) as error:
        given.case(folder(tmp_path / "own", **changes))
    assert why in str(error.value)
    assert error.value.next


def test_a_folder_without_config_or_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        given.case(tmp_path)
    (folder(tmp_path / "own") / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        given.case(tmp_path / "own")


@pytest.mark.parametrize("config", [True, False])
def test_shards_of_a_training_run_say_how_they_are_put_together(
    tmp_path: Path, config: bool
) -> None:
    own = folder(tmp_path / "own")
    (own / "model.safetensors").unlink()
    (own / "global_step500").mkdir()
    (own / "global_step500" / "zero_pp_rank_1_mp_rank_00_model_states.pt").touch()
    if not config:
        (own / "config.json").unlink()
    with pytest.raises(CheckpointError, match="DeepSpeed ZeRO") as error:
        given.case(own)
    assert "zero_to_fp32.py . whole --safe_serialization" in error.value.next
    # What was put together in the same folder is a checkpoint again.
    (own / "model.safetensors").touch()
    given._put_together(own)


def test_one_that_is_too_large_says_by_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given, "_available", lambda: 10)
    with pytest.raises(CheckpointError) as error:
        given.case(folder(tmp_path / "own"))
    assert "GB are free" in error.value.why


def test_other_bytes_are_another_checkpoint(tmp_path: Path) -> None:
    first = given.case(folder(tmp_path / "own"))
    save_file({"model.norm.weight": np.zeros(4, np.float32)}, tmp_path / "own/model.safetensors")
    assert given.case(tmp_path / "own").sources != first.sources


class Damaged:
    """An oracle that finds every checkpoint damaged, and computes nothing."""

    requirements = ("nothing",)
    environment = "its own"

    def inspect(self, cases: list[Case]) -> list[str]:
        return ["1 missing: lm_head.weight" for _ in cases]

    need_whole = oracle.Oracle.need_whole

    def golden(self, cases: list[Case], progress: object) -> list[object]:
        assert cases == []
        return []


def test_a_damaged_one_never_reaches_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "ensure", lambda progress: Damaged())
    report = suite.run(
        python=tmp_path / "no-python",
        out=tmp_path / "out",
        variants=[],
        checkpoints=[folder(tmp_path / "own")],
        options=Options(),
    )
    (failed,) = report.failures()
    assert (failed.check, failed.note) == ("checkpoint.whole", "1 missing: lm_head.weight")
    assert report.count("pass") == 0
    assert {r.status for r in report.results if r.check != "checkpoint.whole"} == {"not-shown"}
    assert report.diagnoses == ()


def test_nor_does_it_reach_an_engine_of_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "ensure", lambda progress: Damaged())
    own = given.case(folder(tmp_path / "own"))
    with pytest.raises(CheckpointError, match="does not hold the model") as error:
        parallel.run([own], 2, python=tmp_path / "no-python", out=tmp_path, options=Options())
    assert error.value.why == "1 missing: lm_head.weight"


def test_faults_are_told_by_number_and_name() -> None:
    found = {"missing": ["a", "b", "c", "d"], "extra": [], "not finite": ["e"]}
    assert oracle._faults(found) == "4 missing: a, b, c, …; 1 not finite: e"
    assert oracle._faults({"missing": []}) == ""
