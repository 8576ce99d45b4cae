"""What the patched TurboMind refuses, and how it tells who asked for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dspatch import paths

TEMPLATES = paths.data("templates") / "lmdeploy" / "turbomind"
CONFIGS = Path(__file__).parents[1] / "data" / "configs"
GOLDENS = sorted((paths.data("patches") / "lmdeploy" / "turbomind-asked-for" / "golden").iterdir())


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}


def loaded(name: str, module: str, **known: Any) -> ModuleType:
    """A template without traits, as a module."""
    made = ModuleType(module)
    made.__dict__.update(known)
    exec(compile((TEMPLATES / f"{name}.py.j2").read_text(), name, "exec"), made.__dict__)
    return made


LIMITS = loaded("deepseek_limits", "deepseek_limits", __package__="")


def config(name: str, **changes: Any) -> SimpleNamespace:
    """A published model's config, changed."""
    return SimpleNamespace(**(json.loads((CONFIGS / f"{name}.json").read_text()) | changes))


def unable(name: str, **changes: Any) -> str | None:
    cfg = config(name, **changes)
    found: str | None = LIMITS.unable(cfg.architectures[0], cfg)
    return found


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v2.5"])
def test_the_published_models_of_the_second_generation_are_taken(name: str) -> None:
    assert unable(name) is None


@pytest.mark.parametrize("form", [FP8, AWQ, {}])
def test_fp8_in_blocks_and_awq_in_groups_are_taken(form: dict[str, Any]) -> None:
    assert unable("deepseek-v2", quantization_config=form) is None
    assert unable("deepseek-v2", quantization_config=SimpleNamespace(to_dict=lambda: form)) is None


@pytest.mark.parametrize(
    ("name", "heads", "experts"),
    [
        ("deepseek-v2-lite", 1, 1),
        ("deepseek-v3", 8, 8),
        # Spread whole over GPUs, an expert is not cut.
        ("deepseek-v3", 16, 1),
    ],
)
def test_what_can_be_shared_out_is(name: str, heads: int, experts: int) -> None:
    assert LIMITS.shared_out(config(name), heads, experts) is None


@pytest.mark.parametrize("form", [FP8, None])
def test_heads_that_cannot_be_shared_out_are_told(form: dict[str, Any] | None) -> None:
    cfg = config("deepseek-v2-lite", quantization_config=form)
    told = "tp=3: 16 attention heads cannot be shared out to 3 GPUs"
    assert LIMITS.shared_out(cfg, 3, 1).startswith(told)


def test_blocks_of_fp8_that_cannot_be_cut_are_told_and_weights_without_blocks_are_taken() -> None:
    told = "tp=16: experts of 2048 leave 128 to a GPU"
    assert LIMITS.shared_out(config("deepseek-v3"), 16, 16).startswith(told)
    assert LIMITS.shared_out(config("deepseek-v3", quantization_config={}), 16, 16) is None


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1", "deepseek-v3.1"])
def test_the_third_generation_is_refused_for_its_router(name: str) -> None:
    told = unable(name)
    assert told
    assert "from 8 groups by noaux_tc" in told


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1", "deepseek-v3.1"])
def test_where_the_gate_was_compiled_for_groups_the_third_generation_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "NOAUX_GROUPS", True)
    assert unable(name) is None
    # transformers leaves both out.
    assert unable(name, topk_method=None, scoring_func=None) is None
    assert unable("deepseek-v2") is None
    assert "by an indexer" in str(unable(name, architectures=["DeepseekV32ForCausalLM"]))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"topk_method": "group_limited_greedy"}, "is not that of DeepSeek-V3"),
        ({"scoring_func": "softmax"}, "scores experts by softmax"),
        ({"n_group": 7}, "4 of 7 groups of 256 experts"),
        ({"topk_group": 9}, "9 of 8 groups"),
        ({"n_group": 256}, "groups of 1 expert,"),
        ({"num_experts_per_tok": 33}, "33 experts a token"),
        ({"n_routed_experts": 16, "topk_group": 2}, "8 experts a token"),
        ({"kv_lora_rank": 256}, "latents of 512 + 64"),
    ],
)
def test_the_gate_for_groups_has_rules_of_its_own(
    changes: dict[str, Any], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "NOAUX_GROUPS", True)
    assert part in str(unable("deepseek-v3", **changes))


def test_other_models_are_none_of_its_business() -> None:
    assert LIMITS.unable("LlamaForCausalLM", SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("deepseek-v2-lite", {"kv_lora_rank": 256}, "latents of 512 + 64, not 256 + 64"),
        ("deepseek-v2-lite", {"kv_lora_rank": "512"}, "kv_lora_rank in its config is '512'"),
        ("deepseek-v2-lite", {"n_routed_experts": True}, "n_routed_experts in its config is True"),
        ("deepseek-v2-lite", {"num_experts_per_tok": 9}, "no router is compiled for 9 of 64"),
        ("deepseek-v2-lite", {"n_routed_experts": 66}, "no router is compiled for 6 of 66"),
        ("deepseek-v2-lite", {"topk_method": "noaux_tc"}, "the router noaux_tc is not"),
        ("deepseek-v2-lite", {"scoring_func": "sigmoid"}, "scores experts by sigmoid"),
        ("deepseek-v2-lite", {"rope_scaling": {"type": "linear"}}, "RoPE of the kind linear"),
        ("deepseek-v2-lite", {"quantization_config": {"quant_method": "fp8"}}, "blocks of None"),
        (
            "deepseek-v2-lite",
            {"quantization_config": FP8 | {"weight_block_size": [64, 64]}},
            "[64, 64]",
        ),
        (
            "deepseek-v2-lite",
            {"quantization_config": {"quant_method": "gptq"}},
            "quantised by gptq",
        ),
        ("deepseek-v2-lite", {"quantization_config": AWQ | {"group_size": 64}}, "in groups of 64"),
        ("deepseek-v2-lite", {"quantization_config": AWQ | {"version": "gemv"}}, "(gemv)"),
        ("deepseek-v2-lite", {"attention_bias": True}, "has biases"),
        ("deepseek-v2-lite", {"tie_word_embeddings": True}, "are tied"),
        ("deepseek-v2-lite", {"moe_layer_freq": 2}, "not every later layer has experts"),
        ("deepseek-v2", {"n_group": 4}, "not 160 in 4"),
        ("deepseek-v2", {"norm_topk_prob": True}, "does not normalise"),
        (
            "deepseek-v2-lite",
            {"norm_topk_prob": True, "routed_scaling_factor": 2.0},
            "disagrees on whether",
        ),
    ],
)
def test_each_rule_refuses_what_breaks_it(name: str, changes: dict[str, Any], part: str) -> None:
    told = unable(name, **changes)
    assert told
    assert part in told


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that refuses, in a package with V3's config."""
    package, archs = ModuleType("engine"), ModuleType("engine.archs")
    package.__path__ = []
    arch = ("DeepseekV3ForCausalLM", SimpleNamespace(n_group=8))
    archs.get_model_arch = lambda *_, **__: arch  # type: ignore[attr-defined]
    turbomind, table = (
        ModuleType("engine.turbomind"),
        ModuleType("engine.turbomind.supported_models"),
    )
    turbomind.__path__ = []
    table.SUPPORTED_ARCHS = {}  # type: ignore[attr-defined]
    limits = LIMITS
    modules = {
        "engine": package,
        "engine.archs": archs,
        "engine.turbomind": turbomind,
        "engine.turbomind.supported_models": table,
        "engine.turbomind.deepseek_limits": limits,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("LMDEPLOY_TURBOMIND_FALLBACK", raising=False)
    return loaded("asked_for", "engine.asked_for", __package__="engine")


def test_who_asked_for_turbomind_and_would_get_another_engine_is_told_why(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = engine.refusal("deepseek-v3", "pytorch")
    assert "TurboMind was asked for and cannot serve deepseek-v3: its router" in told
    assert "--backend pytorch" in told
    assert engine.refusal("deepseek-v3", "turbomind") is None
    monkeypatch.setenv("LMDEPLOY_TURBOMIND_FALLBACK", "1")
    assert engine.refusal("deepseek-v3", "pytorch") is None


def test_a_command_line_ends_only_where_it_asked_for_turbomind(engine: ModuleType) -> None:
    with pytest.raises(SystemExit, match="cannot serve deepseek-v3: its router"):
        engine.need("turbomind", "pytorch", "deepseek-v3")
    engine.need(None, "pytorch", "deepseek-v3")
    engine.need("turbomind", "turbomind", "deepseek-v2")


def test_a_config_that_only_its_own_code_reads_has_no_model(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise ValueError("set trust_remote_code=True")

    monkeypatch.setattr(sys.modules["engine.archs"], "get_model_arch", refuse)
    assert "it has no model for this config.json" in engine.refusal("own", "pytorch")


@pytest.mark.parametrize("golden", GOLDENS, ids=[path.stem for path in GOLDENS])
def test_who_asked_is_read_from_what_was_asked_and_not_from_the_calling_program(
    golden: Path,
) -> None:
    added = [line for line in golden.read_text().splitlines() if line.startswith("+")]
    assert not [line for line in added if "argv" in line]
    asks = [line for line in added if line.endswith("import need")]
    # The API server and the chat; to 0.9.2 `serve gradio` too.
    assert len(asks) == (3 if golden.stem in ("v0.6.4", "v0.9.2") else 2)


def test_without_limits_the_table_gives_the_reason(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "engine.turbomind.deepseek_limits", None)
    assert "it has no model for DeepseekV3ForCausalLM" in engine.refusal("v3", "pytorch")


def test_a_turbomind_that_cannot_be_loaded_says_what_is_missing(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "engine.turbomind.supported_models", None)
    assert "cannot be loaded here" in engine.refusal("v3", "pytorch")
