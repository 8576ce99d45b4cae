"""Names of published checkpoints: the lists, the configs, and the verdicts on what loaders took."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from dspatch import variants
from dspatch.cli import cli
from dspatch.conformance import names, published, taken
from dspatch.conformance.published import Published
from dspatch.engines import Options
from dspatch.errors import EngineError, UnknownVariantError

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
# What no engine's model or loader asks of a config.json.
UNASKED = {"auto_map", "transformers_version", "use_cache", "initializer_range", "pretraining_tp"}
UNASKED |= {"aux_loss_alpha", "seq_aux", "ep_size", "attention_dropout", "norm_topk_prob"}

Found = dict[str, Any]


@pytest.mark.parametrize("name", published.listed())
def test_a_list_has_as_many_tensors_and_numbers_as_its_source_says(name: str) -> None:
    tensors, said = published.listing(name), published.stated(name)
    assert (len(tensors), published.elements(tensors)) == said


@pytest.mark.parametrize(
    "name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3.2"]
)
def test_the_config_states_what_the_published_one_does(name: str) -> None:
    """All keys that both have are equal."""
    ours = json.loads(json.dumps(published.checkpoint(name).config))
    theirs = json.loads((CONFIGS / f"{name}.json").read_text())
    differing = {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]}
    assert differing <= {"bos_token_id", "eos_token_id"}
    missing = theirs.keys() - ours.keys() - UNASKED
    assert missing == set()


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("deepseek-r1", "deepseek-v3"),
        ("deepseek-v2.5", "deepseek-v2"),
        ("deepseek-v3.2", "deepseek-v3.2"),
    ],
)
def test_variants_of_the_same_sizes_have_the_same_names(name: str, like: str) -> None:
    assert published.known(name) == like


@pytest.mark.parametrize(
    ("asked", "standing"),
    [
        (variants.names(), ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3"]),
        (["deepseek-v3.1", "deepseek-v3", "deepseek-v3.2"], ["deepseek-v3", "deepseek-v3.2"]),
        (["deepseek-llm-7b", "deepseek-r1", "deepseek-v3.1"], ["deepseek-r1"]),
    ],
)
def test_a_job_s_variants_are_held_to_each_list_once(
    asked: Sequence[str], standing: list[str]
) -> None:
    assert published.standing_for(asked) == standing


def test_a_job_of_which_nothing_is_listed_is_refused() -> None:
    with pytest.raises(UnknownVariantError, match="deepseek-llm-7b's tensors are not listed"):
        published.standing_for(["deepseek-llm-7b", "deepseek-moe-16b"])


def test_a_variant_that_nobody_listed_is_refused() -> None:
    with pytest.raises(UnknownVariantError, match="not listed"):
        published.checkpoint("deepseek-llm-7b")


def test_the_upcast_form_has_no_scales_and_no_fp8() -> None:
    case = published.checkpoint("deepseek-v3", "bf16")
    assert "quantization_config" not in case.config
    assert not any(n.endswith(published.SCALE) for n in case.tensors)
    assert {dtype for _, dtype in case.tensors.values()} == {"bfloat16", "float32"}


@pytest.mark.parametrize(
    ("version", "form"),
    [("0.13.0", "bf16"), ("0.25.1", "bf16"), ("0.27.1+cpu.dspatch.1", "bf16"), ("0.32.0", "fp8")],
)
def test_a_release_that_loads_no_fp8_is_held_to_the_upcast_names(version: str, form: str) -> None:
    assert [each.form for each in names.cases(["deepseek-v3"], "vllm", version)] == [form]


def test_a_form_that_is_named_is_given_whatever_the_release_says() -> None:
    assert [each.form for each in names.cases(["deepseek-v3/fp8"], "vllm", "0.27.1")] == ["fp8"]


@pytest.mark.parametrize("name", ["deepseek-v3/awq", "deepseek-v2-lite/fp8"])
def test_a_form_that_is_not_listed_is_refused(name: str) -> None:
    with pytest.raises(UnknownVariantError, match="not listed in the form"):
        names.cases([name], "vllm", "0.32.0")


def _case() -> Published:
    """One dense layer and one prediction layer."""
    own = [
        "model.embed_tokens.weight",
        "model.layers.0.a.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]
    ahead = ["model.layers.1.a.weight", "model.layers.1.eh_proj.weight"]
    tensors = {name: ([2, 2], "bfloat16") for name in (*own, *ahead)}
    config = {"num_hidden_layers": 1, "num_nextn_predict_layers": 1}
    return Published(variant="deepseek-v3", form="fp8", config=config, tensors=tensors)


def _load(*consumed: str) -> Found:
    return {"consumed": list(consumed), "parameters": 1, "elements": 4, "unfit": {}, "error": ""}


def _found() -> Found:
    every = list(_case().tensors)
    return {
        "main": _load(*every[:4]),
        "draft": _load(every[0], *every[4:]),
        "fused": {"main": _load(*every[:4]), "draft": _load(every[0], *every[4:])},
        "stages": [_load(*every[:2]), _load(*every[2:4])],
    }


def _statuses(found: Found) -> dict[str, str]:
    return {each.check: each.status for each in taken.judged(_case(), found)}


def test_loaders_that_take_each_name_once_pass() -> None:
    results = taken.judged(_case(), _found())
    assert [each.status for each in results] == ["pass"] * 4
    assert results[0].note == "6 names: the main model takes 4, the draft 3, 1 of them both"


def test_a_release_without_a_draft_must_skip_its_layers_and_the_report_says_so() -> None:
    found = _found() | {"draft": None}
    results = taken.judged(_case(), found)
    assert results[0].status == "pass"
    assert "skips 2 of prediction layers" in results[0].note


def _lost(found: Found) -> None:
    found["main"]["consumed"].remove("model.norm.weight")


def _both(found: Found) -> None:
    found["draft"]["consumed"].append("model.norm.weight")


def _swallowed(found: Found) -> None:
    found["main"]["consumed"] += found["draft"]["consumed"][1:]
    found["draft"] = None


def _moved(found: Found) -> None:
    found["main"]["consumed"].append(found["draft"]["consumed"].pop())


def _raised(found: Found) -> None:
    found["draft"]["error"] = "KeyError: 'x' (at y)"


@pytest.mark.parametrize("fault", [_lost, _both, _swallowed, _moved, _raised])
def test_names_that_go_elsewhere_are_told(fault: Callable[[Found], None]) -> None:
    found = _found()
    fault(found)
    assert _statuses(found)["names.taken"] == "fail"


def test_a_parameter_that_no_name_fills_is_told() -> None:
    found = _found()
    found["draft"]["unfit"] = {"model.x": {"got": 0, "size": 4, "of": []}}
    (_, filled, _, _) = taken.judged(_case(), found)
    assert filled.status == "fail"
    assert "model.x (0 of 4)" in filled.note


def test_a_shared_table_may_be_written_twice_and_another_may_not() -> None:
    found = _found()
    twice = {
        "got": 8,
        "size": 4,
        "of": ["model.embed_tokens.weight", "model.layers.1.embed.weight"],
    }
    found["draft"]["unfit"] = {"model.embed_tokens.weight": twice}
    assert _statuses(found)["names.filled"] == "pass"
    twice["of"] = ["model.layers.1.a.weight", "model.layers.1.b.weight"]
    assert _statuses(found)["names.filled"] == "fail"


@pytest.mark.parametrize(
    "fault",
    [
        lambda stages: stages[1]["consumed"].clear(),
        lambda stages: stages[1]["consumed"].append("model.layers.0.a.weight"),
        lambda stages: stages[0].update(error="KeyError"),
    ],
)
def test_stages_that_do_not_share_the_names_are_told(fault: Callable[[list[Found]], None]) -> None:
    found = _found()
    fault(found["stages"])
    assert _statuses(found)["names.stages"] == "fail"


def test_fused_shared_experts_that_take_fewer_names_are_told() -> None:
    found = _found()
    found["fused"]["draft"]["consumed"].pop()
    assert _statuses(found)["names.fused"] == "fail"
    found = _found()
    found["fused"]["main"]["unfit"] = {"model.w13": {"got": 4, "size": 8, "of": ["x"]}}
    assert _statuses(found)["names.fused"] == "fail"


def test_an_engine_without_pipelines_or_fused_experts_shows_nothing_of_them() -> None:
    found = _found() | {"stages": [], "fused": None}
    assert _statuses(found) == {
        "names.taken": "pass",
        "names.filled": "pass",
        "names.fused": "not-shown",
        "names.stages": "not-shown",
    }


def test_a_model_that_the_engine_does_not_make_fails_with_its_reason() -> None:
    results = taken.judged(_case(), _found() | {"main": {"refused": "ValueError: no"}})
    assert results[0].check == "engine.start"
    assert results[0].note == "main: ValueError: no"
    assert {each.status for each in results[1:]} == {"not-shown"}


@pytest.mark.parametrize(
    "other",
    [
        ("--tp", "2"),
        ("--quantised", "awq"),
        ("--dtype", "float32"),
        ("--api",),
        ("--url", "http://x"),
    ],
)
def test_what_says_nothing_beside_names_is_refused(other: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["conformance", "--names", *other])
    assert done.exit_code == 2
    assert "--names loads no weights" in done.output


def test_nothing_is_prepared_of_names(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["conformance", "--names", "--prepare", str(tmp_path)])
    assert done.exit_code == 2
    assert "--prepare runs no engine" in done.output


def test_another_engine_is_refused() -> None:
    with pytest.raises(EngineError, match="loaders take is not known"):
        names.run([], python=Path("python"), engine="lmdeploy", options=Options())


WORKER = "dspatch.engines.workers.vllm_names_worker"
LOADING = "vllm.model_executor.model_loader"


def test_an_engine_that_refuses_without_a_word_is_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(folder: str, **which: Any) -> None:
        if which:
            raise AssertionError

    stub = SimpleNamespace(model=refuse, staged=lambda: False, drafts=lambda: True, fused=_unknown)
    for name in ("building", "tracing"):
        monkeypatch.setitem(sys.modules, f"{WORKER}.{name}", stub)
    stub.load = lambda model, tensors: {"consumed": tensors}
    worker = _imported(f"{WORKER}.__main__")
    case = {"config": {}, "tensors": ["a"], "draft": True, "stages": 2}
    told = worker._loads(case)
    assert told == {
        "main": {"consumed": ["a"]},
        "draft": {"refused": "AssertionError: "},
        "fused": None,
        "stages": [],
    }


def _newest(vllm_config: Any, model_config: str) -> list[Any]:
    return [vllm_config.model_config, model_config]


def _first_v1(vllm_config: Any, *, prefix: str = "") -> str:
    return str(vllm_config.model_config)


def _before_v1(model_config: str, load_config: str, lora_config: None) -> list[str | None]:
    return [model_config, load_config, lora_config]


@pytest.mark.parametrize(
    ("utils", "loader", "chosen", "made"),
    [
        ({"initialize_model": _newest}, {}, "draft", ["main", "draft"]),
        ({}, {"_initialize_model": _first_v1}, "draft", "draft"),
        ({}, {"_initialize_model": _before_v1}, "main", ["main", "how", None]),
    ],
)
def test_a_model_is_made_as_the_loader_of_its_release_makes_it(
    utils: Found, loader: Found, chosen: str, made: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.8.5 has V1, and yet no `initialize_model`."""
    stub = SimpleNamespace(TorchFunctionMode=object, _device_constructors=None)
    for name in ("torch", "torch.overrides", "torch.utils", "torch.utils._device"):
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setitem(sys.modules, f"{LOADING}.utils", SimpleNamespace(**utils))
    monkeypatch.setitem(sys.modules, f"{LOADING}.loader", SimpleNamespace(**loader))
    config = SimpleNamespace(model_config="main", load_config="how")
    assert _imported(f"{WORKER}.building")._initialized(config, chosen) == made
    assert config.model_config == "main"


def _imported(name: str) -> Any:
    """A module of the worker, afresh, as no other test may have it with these stubs."""
    module = importlib.import_module(name)
    package, _, own = name.rpartition(".")
    del sys.modules[name], vars(sys.modules[package])[own]
    return module


@contextmanager
def _unknown() -> Iterator[bool]:
    yield False
