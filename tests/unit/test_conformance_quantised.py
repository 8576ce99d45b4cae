"""Quantised models: how they are named, taken apart, judged, and refused where nothing here serves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dspatch.cli import cli
from dspatch.conformance import checks, faults, quantised, selftest, small
from dspatch.conformance.causes import Standing
from dspatch.conformance.checks.seen import Seen
from dspatch.engines.workers.vllm_worker import weights
from dspatch.errors import NoToleranceError, UncomputableError
from dspatch.stages import proving

MODEL = small.case("deepseek-v3/fp8")
FULL = {"avx512_bf16", "amx_tile"}
INDEXER = {"wk": "index_head_dim", "weights_proj": "index_n_heads"}
SEEN: dict[str, Any] = {
    "worst": 0.0039,
    "where": "model.layers.0.self_attn.o_proj.weight, rows from 0",
    "seen": 30,
    "absorbed": 3,
    "absent": [],
}


def judged(
    found: Any, check: str = "weights.quantised", probe: str = "dequantised", **facts: Any
) -> Any:
    probes = {f"{probe}/": {probe: found}} if found else {}
    one = Seen(
        variant=MODEL.name, dtype="bfloat16", config=MODEL.features, facts=facts,
        measures={"probes": probes},
    )  # fmt: skip
    return checks.judge(one, [check])[0]


def asked(standing: Standing) -> Any:
    return lambda name: (standing, name)


def test_weights_within_a_rounding_pass_and_others_fail() -> None:
    assert judged(SEEN).status == "pass"
    assert judged({**SEEN, "worst": 0.13}).status == "fail"
    assert judged({**SEEN, "worst": float("nan")}).status == "fail"


def test_what_could_not_be_read_back_is_not_shown_and_hides_no_fault() -> None:
    lost = ["model.layers.0.self_attn.o_proj.weight"]
    assert judged({**SEEN, "absent": lost}).status == "not-shown"
    assert judged({**SEEN, "absent": lost, "worst": 0.5}).status == "fail"
    found = judged(None, unprobed={"dequantised": "none is quantised"})
    assert (found.status, found.note) == (
        "not-shown",
        "the engine cannot be asked: none is quantised",
    )


def test_products_within_rounding_pass_and_others_fail() -> None:
    names = ("model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.q_b_proj.weight")
    given = ("kernels.quantised", "multiplied")
    assert judged([[name, 5e-6] for name in names], *given).status == "pass"
    failed = judged([[names[0], 5e-6], [names[1], 0.05]], *given)
    assert (failed.status, names[1] in failed.note) == ("fail", True)
    assert judged([], *given).status == "not-shown"


def test_an_unquantised_model_is_not_asked() -> None:
    assert "weights.quantised" not in checks.fitting(small.case("deepseek-v3").features)
    assert "weights.quantised" in checks.fitting(MODEL.features)
    assert "sampling.seed" in checks.fitting(small.case("deepseek-v3").features)
    assert "sampling.seed" not in checks.fitting(MODEL.features)


@pytest.mark.parametrize("form", quantised.FORMS)
def test_each_form_has_its_own_faults(form: str) -> None:
    own = faults.fitting("hook", small.case(f"deepseek-v3/{form}").features)
    named = [fault for fault in own if fault.caught_by == "weights.quantised"]
    assert len(named) >= 3
    assert any(fault.caught_by == "kernels.quantised" for fault in own)
    plain = faults.fitting("hook", small.case("deepseek-v3").features)
    assert not {fault.name for fault in named} & {fault.name for fault in plain}


def test_a_fault_of_place_is_looked_for_only_where_numbers_have_a_band() -> None:
    fault = next(one for one in faults.FAULTS if one.name == "router-bias-ignored")
    failed = checks.engine("golden.routes", Seen(
        variant="v", dtype="bfloat16", config={}, facts={}, measures={},
    ), "fail", "")  # fmt: skip
    row = {"fault": fault, "variant": "v", "results": (failed,)}
    assert selftest.Planted(**row).misplaced
    assert selftest.Planted(**row, dtype="bfloat16").misplaced
    assert not selftest.Planted(
        **row, dtype="bfloat16", device="one that nobody measured"
    ).misplaced


def test_each_shape_of_model_is_tried_once_in_a_form() -> None:
    assert quantised.models(["deepseek-v3", "deepseek-r1"], "awq") == ["deepseek-v3/awq"]
    assert quantised.models(["deepseek-v3/saved"], "fp8") == ["deepseek-v3/fp8"]
    assert small.case("deepseek-v3/awq").config["q_lora_rank"] == 256
    assert small.case("deepseek-v2-lite/awq").config["q_lora_rank"] is None


@pytest.mark.parametrize("choose", [proving.models_of, proving.models_to_convert])
def test_a_form_that_was_asked_for_is_all_that_is_proven(choose: Any) -> None:
    assert choose(proving.Wanted(quantised="fp8"), ["deepseek-v3"]) == ["deepseek-v3/fp8"]


def test_without_a_word_quantised_models_run_in_what_their_kernels_compute_in() -> None:
    assert quantised.dtype(None, ["deepseek-v3/awq"], "float32") == "bfloat16"
    assert quantised.dtype(None, ["deepseek-v3"], "float32") == "float32"
    assert quantised.dtype("float16", ["deepseek-v3/awq"], "float32") == "float16"


def test_a_dtype_that_no_kernel_computes_in_is_refused() -> None:
    quantised.need_dtype(["deepseek-v3", "deepseek-v3/fp8"], "bfloat16")
    with pytest.raises(NoToleranceError, match="cannot be judged in float16"):
        quantised.need_dtype(["deepseek-v3/fp8"], "float16")


@pytest.mark.parametrize(
    ("version", "form", "flags", "standing", "why"),
    [
        ("0.32.0+cpu.dspatch.1", "fp8", {"avx512_bf16"}, "ruled out", ""),
        ("0.32.0", "fp8", {"avx512_bf16"}, "confirmed", "AMX"),
        ("0.32.0", "fp8", FULL, "confirmed", ""),
        ("0.32.0", "awq", {"avx2"}, "ruled out", "AVX-512"),
        ("0.32.0", "gptq-8", FULL, "ruled out", "four bits"),
        ("0.27.1", "fp8", FULL, "ruled out", "absorb"),
        ("0.27.1", "gptq", FULL, "ruled out", "router"),
        ("0.13.0", "fp8", FULL, "ruled out", "no CPU kernel"),
        ("0.6.0", "fp8", FULL, "ruled out", ""),  # patched: V3 is there, and dequantises
        ("0.6.0", "fp8", FULL, "confirmed", "deepseek-v3-model"),
        ("0.6.3", "fp8", FULL, "ruled out", "no CPU kernel"),
        ("no version", "awq", set(), "confirmed", ""),
    ],
)
def test_what_a_release_or_a_processor_refuses(
    version: str, form: str, flags: set[str], standing: Standing, why: str
) -> None:
    case = small.case(f"deepseek-v3/{form}")
    found = quantised.refused("vllm", version, case, flags, asked(standing))
    assert why in found
    assert bool(why) == bool(found)


def test_a_router_that_kernels_take_is_not_refused() -> None:
    plain = small.case("deepseek-v2-lite/awq")
    assert not quantised.refused("vllm", "0.27.1", plain, set(), asked("open"))
    assert quantised.refused("vllm", "0.13.0", plain, set(), asked("open"))


def test_the_loader_that_dequantises_is_v3_s_alone() -> None:
    for name in ("deepseek-v2-lite/fp8", "deepseek-v2/fp8"):
        assert quantised.refused("vllm", "0.6.0", small.case(name), FULL, asked("ruled out"))
    assert not quantised.never("vllm", "0.6.0", "fp8-blocks")
    assert quantised.never("vllm", "0.8.5", "fp8-blocks")


def test_eight_bits_are_refused_for_what_the_kernels_know_whatever_the_dtype() -> None:
    quantised.need_dtype(["deepseek-v3/gptq-8"], quantised.DTYPE)
    with pytest.raises(UncomputableError) as refused:
        quantised.need_served(["deepseek-v3/gptq-8"], "vllm", "0.32.0", "cpu", asked("ruled out"))
    assert refused.value.why == "its CPU kernels know four bits, not eight"


def test_several_processes_are_not_given_what_they_would_not_run() -> None:
    done = CliRunner().invoke(cli, ["conformance", "--tp", "2", "--variant", "deepseek-v3/fp8"])
    assert done.exit_code == 2
    assert "--tp runs unquantised models" in done.output


def test_a_refusal_names_the_models_before_anything_starts() -> None:
    names = ["deepseek-v3", "deepseek-v3/awq"]
    with pytest.raises(UncomputableError, match="deepseek-v3/awq"):
        quantised.need_served(names, "vllm", "0.27.1", "cpu", asked("open"))
    quantised.need_served(names, "vllm", "0.27.1", "cuda", asked("open"))
    quantised.need_served(["deepseek-v3"], "vllm", "0.27.1", "cpu", asked("open"))


def _taken_apart(kind: str, parts: list[np.ndarray], side: int) -> None:
    config = MODEL.config
    name = "model.layers.0.self_attn.{}." + kind
    whole = np.concatenate(parts, side)
    found = weights.unfused({name.format("fused_qkv_a_proj"): whole}, config)
    for own, part in zip(("q_a_proj", "kv_a_proj_with_mqa"), parts, strict=True):
        assert np.array_equal(found[name.format(own)], part), kind


def test_fused_projections_come_apart_at_whole_blocks_and_words() -> None:
    hidden = 256
    rows = (256, 576)
    sides = {
        "weight": (0, [(n, hidden) for n in rows]),
        # 576 rows make five blocks, the last one cut off.
        "weight_scale_inv": (0, [(-(-n // 128), 2) for n in rows]),
        "qweight": (1, [(hidden, n // 8) for n in rows]),
        "qzeros": (1, [(2, n // 8) for n in rows]),
        "scales": (1, [(2, n) for n in rows]),
    }
    dice = np.random.default_rng(0)
    for kind, (side, shapes) in sides.items():
        _taken_apart(kind, [dice.integers(0, 99, shape) for shape in shapes], side)


def test_an_indexer_s_fused_projection_comes_apart_along_its_outputs() -> None:
    config = small.case("deepseek-v3.2").config
    parts = [np.full((256, config[key] // 8), n) for n, key in enumerate(INDEXER.values())]
    stem = "model.layers.0.self_attn.indexer"
    whole = {f"{stem}.wk_weights_proj.qweight": np.concatenate(parts, 1)}
    found = weights.unfused(whole, config)
    for name, part in zip(INDEXER, parts, strict=True):
        assert np.array_equal(found[f"{stem}.{name}.qweight"], part)


def test_the_order_of_inputs_is_that_of_every_fused_part() -> None:
    order = np.arange(256)
    found = weights.unfused({"model.layers.0.mlp.gate_up_proj.g_idx": order}, MODEL.config)
    assert {name.rpartition(".mlp.")[2] for name in found} == {"gate_proj.g_idx", "up_proj.g_idx"}


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("qweight", (2, 16, 8)), ("scales", (2, 1, 64)), ("weight_scale_inv", (2, 2, 2))],
)
def test_stacked_experts_come_apart(kind: str, shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape)).reshape(shape)
    found = weights.unfused({f"model.layers.1.mlp.experts.w13_{kind}": value}, MODEL.config)
    side = weights.SIDES[kind]
    parts = [found[f"model.layers.1.mlp.experts.1.{p}_proj.{kind}"] for p in ("gate", "up")]
    assert np.array_equal(np.concatenate(parts, side), value[1])
