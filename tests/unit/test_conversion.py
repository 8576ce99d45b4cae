"""The conversion of weights: which releases have it, what is tried, and what is said of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspatch.conformance import checkpoint, conversion, small
from dspatch.conformance.checkpoint import Checkpoint
from dspatch.conformance.conversion import Ran
from dspatch.conformance.oracle import Golden
from dspatch.engines import turbomind
from dspatch.engines.turbomind import Conversion
from dspatch.engines.workers.turbomind_worker import allocated
from dspatch.stages import proving
from dspatch.stages.proving import Wanted

WHOLE: dict[str, Any] = {
    "torch": "2.13.0",
    "stubbed": ["Tensor.cuda"],
    "dtypes": ["bfloat16"],
    "unread": [],
    "missing": [],
    "extra": [],
    "shapes": [],
    "rounded": [],
}
NUMBERS = dict.fromkeys(conversion.MEASURED.values(), 0.0)


def ran(**facts: Any) -> Ran:
    case = small.case("deepseek-v2-lite")
    golden = Golden(checkpoint=Checkpoint(case=case, key="0"), path=Path("golden"))
    return Ran(
        case=case,
        golden=golden,
        conversion=Conversion(folder=Path("out"), facts={**WHOLE, **facts}),
    )


@pytest.mark.parametrize(
    ("version", "latent", "builders"),
    [
        ("0.6.4", False, False),
        ("0.12.1", False, False),
        ("0.12.2", True, False),
        ("0.13.0+dspatch.1a2b", True, False),
        ("0.14.0", True, True),
        ("0.18.0+dspatch.1a2b", True, True),
    ],
)
def test_a_release_is_converted_as_the_newest_known_one_before_it(
    version: str, latent: bool, builders: bool
) -> None:
    known = turbomind.release(version)
    assert known is not None
    assert (known.latent, known.builders) == (latent, builders)


@pytest.mark.parametrize("version", ["0.6.3", "0.18.1"])
def test_of_other_releases_nobody_read_how_they_convert(version: str) -> None:
    assert turbomind.release(version) is None
    assert not proving.converts("lmdeploy", version, Wanted())


def test_only_lmdeploy_is_proven_by_its_conversion() -> None:
    assert proving.converts("lmdeploy", "0.13.0", Wanted())
    assert not proving.converts("vllm", "0.13.0", Wanted())


def test_who_names_an_engine_of_lmdeploy_wants_it_run() -> None:
    assert not proving.converts("lmdeploy", "0.13.0", Wanted(backend="turbomind"))


def test_models_are_tried_in_the_forms_that_a_conversion_can_miss() -> None:
    assert small.converted(["deepseek-v2-lite"]) == [
        "deepseek-v2-lite",
        "deepseek-v2-lite/plain-rope",
        "deepseek-v2-lite/saved",
        "deepseek-v2-lite/two-dense",
        "deepseek-v2-lite/no-mscale",
        "deepseek-v2-lite/fp8-blocks",
        "deepseek-v2-lite/awq",
    ]
    assert small.converted(["deepseek-v3/one-group"]) == ["deepseek-v3/one-group"]


def test_the_engine_is_given_the_quantised_files_and_the_oracle_what_they_stand_for() -> None:
    plain, stored = (
        checkpoint.of(small.case(name), written_with="an oracle")
        for name in ("deepseek-v2-lite/awq", "deepseek-v2-lite/fp8-blocks")
    )
    assert stored.given == stored.path / "stored"
    assert stored.task()["stored"] == "fp8-blocks"
    assert plain.key != stored.key
    other = checkpoint.of(small.case("deepseek-v2-lite"), written_with="an oracle")
    assert other.given == other.path


@pytest.mark.parametrize(
    ("model", "fits"), [("deepseek-v2-lite/fp8-blocks", True), ("deepseek-v2-lite/awq", False)]
)
def test_faults_of_blocks_are_planted_where_there_are_blocks(model: str, fits: bool) -> None:
    rows = [row for row in conversion.FAULTS if "block" in row[0]]
    assert len(rows) == 3
    for row in rows:
        assert conversion._fits(conversion._fault(row), small.case(model)) is fits


def config(**changes: Any) -> dict[str, Any]:
    model = {
        "hidden_units": 8, "vocab_size": 5, "embedding_size": 5, "num_layer": 2, "head_num": 2,
        "size_per_head": 6, "kv_lora_rank": 4, "qk_rope_dim": 2, "q_lora_rank": 0, "v_head_dim": 4,
        "inter_size": [16, 4], "expert_num": [0, 2], "expert_inter_size": 4, "topk_method": "greedy",
    }  # fmt: skip
    return {"model_config": {**model, **changes}}


def test_the_engine_allocates_what_its_layout_has() -> None:
    latent = allocated.names(config(), latent=True, vocab_first=False)
    full = allocated.names(config(), latent=False, vocab_first=True)
    assert full.keys() - latent.keys() == {
        f"layers.{layer}.attention.kv_b_proj.0.weight" for layer in (0, 1)
    }
    assert (latent["output.0.weight"], full["output.0.weight"]) == ((8, 5), (5, 8))
    assert "layers.0.moe_ffn.gate.weight" not in latent
    biased = allocated.names(config(topk_method="noaux_tc"), latent=True, vocab_first=False)
    assert biased.keys() - latent.keys() == {"layers.1.moe_ffn.gate.score_correction_bias"}


def test_what_is_whole_and_equal_passes() -> None:
    one = ran()
    assert conversion._names(one).status == "pass"
    assert {each.status for each in conversion._numbers(one, NUMBERS)} == {"pass"}


@pytest.mark.parametrize("word", ["unread", "missing", "extra", "shapes", "rounded"])
def test_every_kind_of_wrong_name_fails(word: str) -> None:
    found = conversion._names(ran(**{word: ["a.weight"]}))
    assert found.status == "fail"
    assert f"1 {word}: a.weight" in found.note


def test_a_number_that_is_none_fails() -> None:
    found = conversion._number(ran(), "conversion.moe", float("nan"))
    assert found.status == "fail"


def test_a_refusal_is_no_failure_and_shows_nothing() -> None:
    refused = conversion._done(ran(error="NotImplementedError: TurboMind cannot (x.py:1)"))
    failed = conversion._done(ran(error="KeyError: 'x' (x.py:1)"))
    assert (refused.status, failed.status) == ("not-shown", "fail")
