"""Which models so many processes can share, by arithmetic, and what the two runs of one are held to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspatch import sharding
from dspatch.conformance import parallel, small, statistic, tolerance
from dspatch.engines.workers.vllm_parallel_worker import joining
from dspatch.errors import ParallelError

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
PUBLISHED = {path.stem: json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))}


def kinds(config: dict[str, Any], degree: int) -> list[str]:
    return [each.tensor.split(".")[-2] for each in sharding.unsplit(config, degree)]


def test_each_small_model_is_shared_by_two() -> None:
    for name in ("deepseek-v2-lite", "deepseek-v2", "deepseek-v3"):
        assert kinds(dict(small.case(name).config), 2) == []


def test_what_cannot_be_shared_is_named_before_anything_starts() -> None:
    with pytest.raises(ParallelError) as caught:
        parallel.cases(["deepseek-v3"], [], 3)
    assert "deepseek-v3 cannot be split among 3 processes" in caught.value.what
    assert "model.layers.0.self_attn.q_b_proj.weight: 4 heads by 3" in caught.value.why
    assert "experts.0.down_proj.weight: 128 columns" in caught.value.why
    assert caught.value.next.endswith("1, 2, 4")


CONFIG = {
    "num_attention_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 10944, "n_routed_experts": 64,
    "moe_intermediate_size": 1408, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "hidden_size": 2048,
}  # fmt: skip
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("changes", "degree", "found"),
    [
        ({}, 1, []),
        ({}, 8, []),
        ({}, 32, ["q_proj", "kv_b_proj", "o_proj"]),
        ({"intermediate_size": 10945}, 2, ["gate_proj", "down_proj"]),
        ({"moe_intermediate_size": 1407}, 2, ["gate_proj", "down_proj"]),
        ({"first_k_dense_replace": 0, "intermediate_size": 10945}, 2, []),
        # 1408 are 11 blocks of 128: whole for one process, cut through for two.
        ({"quantization_config": FP8}, 1, []),
        ({"quantization_config": FP8, "intermediate_size": 10240}, 2, ["gate_proj", "down_proj"]),
        # Half a head of 192 rows is no whole block.
        ({"quantization_config": FP8, "moe_intermediate_size": 2048, "intermediate_size": 10240},
         16, ["q_proj"]),
        # Groups run along the inputs, which only o_proj and down_proj split.
        ({"quantization_config": {"quant_method": "awq", "group_size": 128}}, 2, ["down_proj", "down_proj"]),
        ({"quantization_config": {"quant_method": "gptq", "group_size": -1}}, 2, []),
        ({"kv_lora_rank": None, "n_routed_experts": None, "num_attention_heads": 6}, 4, ["q_proj", "o_proj"]),
    ],
)  # fmt: skip
def test_what_stands_in_the_way(changes: dict[str, Any], degree: int, found: list[str]) -> None:
    assert kinds({**CONFIG, **changes}, degree) == found


def test_the_published_degrees_are_not_refused() -> None:
    """What their authors serve with: V3 and R1 in FP8 on 8 and 16 GPUs, V2 on 8."""
    for name, config in PUBLISHED.items():
        if config.get("kv_lora_rank") and "model_type" in config and "v4" not in name:
            assert kinds(config, 4) == [], name


def said(*logprobs: float, tokens: tuple[int, ...] = (7, 8)) -> dict[str, Any]:
    return {"tokens": list(tokens), "logprobs": [{"5": each} for each in logprobs]}


def test_log_probabilities_are_held_against_those_of_one_that_reads_the_text() -> None:
    found = joining.apart([said(-1.0, -2.0, -3.0)], [said(-1.0, -2.5, -3.0)])
    assert (found["compared"], found["worst"]) == (3, 0.5)


def test_a_log_probability_that_is_no_number_is_the_worst_wherever_it_stands() -> None:
    one, nothing = said(-1.0, -2.0, -3.0), float("nan")
    for place in range(3):
        own = [-1.0, -2.5, -3.0]
        own[place] = nothing
        found = joining.apart([one], [said(*own)])
        assert (found["worst"], found["typical"]) == (float("inf"), float("inf"))


def test_a_step_that_rounding_turned_is_no_typical_one() -> None:
    def told(*logprobs: float) -> dict[str, Any]:
        return said(*logprobs, tokens=(7, 8, 9))

    one = told(-1.0, -2.0, -3.0, -4.0)
    found = joining.apart([one], [told(-1.0, -2.0, -3.0, -4.5)])
    assert (found["worst"], found["typical"]) == (0.5, 0.0)
    assert joining.apart([one], [told(-1.0, -2.5, -3.5, -4.5)])["typical"] == 0.5


def test_a_place_without_a_likely_token_in_common_is_as_far_off_as_can_be() -> None:
    one, other = said(-1.0, -2.0, -3.0), said(-1.0, -2.0, -3.0)
    other["logprobs"][1] = {"6": -1.0}
    found = joining.apart([one], [other])
    assert (found["worst"], found["typical"]) == (float("inf"), float("inf"))


GOOD = {
    "texts": 4, "equal": 4, "compared": 900, "worst": 4e-6, "typical": 1e-6, "weights": 30, "split": 15,
    "lost": [], "blind": [], "processes": 2, "spoiled": {"worst": 3.0, "typical": 2.0},
}  # fmt: skip


def status(**changed: Any) -> list[str]:
    return [each.status for each in parallel.judged("m", "float32", {**GOOD, **changed})]


@pytest.mark.parametrize(
    ("dtype", "fault", "found"),
    [
        ("bfloat16", {}, ["not-shown", "pass"]),
        ("bfloat16", {"typical": float("inf")}, ["fail", "pass"]),
        ("bfloat16", {"compared": 0, "worst": 0.0}, ["fail", "pass"]),
        ("bfloat16", {"lost": ["model.x.weight"]}, ["not-shown", "fail"]),
        ("float8", {}, ["fail", "pass"]),
    ],
)
def test_a_dtype_in_which_no_tolerance_decides_passes_no_log_probabilities(
    dtype: str, fault: dict[str, Any], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (parallel.LIKE, "bfloat16", "cpu")
    unit = statistic.unit(parallel.LIKE, "bfloat16", "nats")
    none = replace(tolerance.table()[key], value=None, unit=unit)
    monkeypatch.setattr(tolerance, "table", lambda: {key: none})
    judged = parallel.judged("m", dtype, {**GOOD, **fault})
    assert [each.status for each in judged] == found
    assert dtype in judged[0].note


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ({}, ["pass", "pass"]),
        ({"worst": 0.1}, ["fail", "pass"]),
        ({"worst": float("nan")}, ["fail", "pass"]),
        ({"compared": 0, "worst": 0.0}, ["fail", "pass"]),
        ({"lost": ["model.x.weight"]}, ["pass", "fail"]),
        ({"blind": ["model.x.weight"]}, ["pass", "fail"]),
        ({"split": 0}, ["pass", "fail"]),
        ({"spoiled": {"worst": 5e-6, "typical": 1e-6}}, ["fail", "pass"]),
        ({"spoiled": None}, ["not-shown", "pass"]),
    ],
)
def test_each_fault_fails_its_own_check(fault: dict[str, Any], found: list[str]) -> None:
    assert status(**fault) == found
