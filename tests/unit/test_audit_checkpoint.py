"""A checkpoint is told by its config.json and its index, and what is wrong with it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspatch.audit import checkpoint
from dspatch.errors import CheckpointError

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
V3: dict[str, Any] = json.loads((CONFIGS / "deepseek-v3.json").read_text())


def write(folder: Path, config: dict[str, Any], tensors: list[str] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        mapped = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(tensors)}
        (folder / checkpoint.INDEX).write_text(json.dumps({"weight_map": mapped}))
        for shard in set(mapped.values()):
            (folder / shard).touch()
    return folder


WHOLE = [
    "model.layers.0.self_attn.kv_b_proj.weight",
    "model.layers.0.self_attn.kv_b_proj.weight_scale_inv",
    "model.layers.3.mlp.gate.e_score_correction_bias",
    "model.layers.61.eh_proj.weight",
]


def names(layer: int, experts: int = 0) -> list[str]:
    """The tensors of a layer, dense without experts."""
    parts = ["self_attn.o_proj.weight", "input_layernorm.weight"]
    parts += [f"mlp.experts.{number}.up_proj.weight" for number in range(experts)]
    return [
        f"model.layers.{layer}.{part}"
        for part in [*parts, *([] if experts else ["mlp.up_proj.weight"])]
    ]


EVEN = [
    "model.embed_tokens.weight", *names(0), *names(1, 2), *names(2, 2), *names(3, 2),
    "model.layers.4.eh_proj.weight", *names(4, 2), "model.layers.4.shared_head.norm.weight",
]  # fmt: skip


def test_layers_of_a_kind_have_the_same_tensors() -> None:
    assert checkpoint.lacking(EVEN) == ()
    for gone in (
        "model.layers.2.self_attn.o_proj.weight",
        "model.layers.3.mlp.experts.1.up_proj.weight",
    ):
        assert checkpoint.lacking(name for name in EVEN if name != gone) == (gone,)


def test_an_index_without_a_layers_weight_is_not_complete(tmp_path: Path) -> None:
    for tensors, complete in ((EVEN, True), (EVEN[:6] + EVEN[7:], False)):
        found = checkpoint.load(str(write(tmp_path, V3, tensors)))
        assert found.config["index.complete"] is complete


def test_a_published_checkpoint_has_no_fault(tmp_path: Path) -> None:
    found = checkpoint.load(str(write(tmp_path, V3, WHOLE)))
    assert found.variant.architecture == "DeepseekV3ForCausalLM"
    assert not found.differs
    assert not found.faults
    assert found.config["index.mtp"] is True
    assert found.config["index.kv_scales"] is False


@pytest.mark.parametrize(
    ("config", "tensors", "severity", "told"),
    [
        (V3, [t for t in WHOLE if "scale" not in t], "wrong", "no tensor of the index is a scale"),
        ({k: v for k, v in V3.items() if k != "quantization_config"}, WHOLE, "wrong", "has no quantization_config"),
        (V3, [t for t in WHOLE if "61" not in t], "crash", "states 1 layers that predict ahead, the index has 0"),
        (V3, [t for t in WHOLE if "bias" not in t], "crash", "correction bias, and the index has none"),
    ],
)  # fmt: skip
def test_an_index_that_is_not_what_the_config_says(
    config: dict[str, Any], tensors: list[str], severity: str, told: str, tmp_path: Path
) -> None:
    (fault,) = checkpoint.load(str(write(tmp_path, config, tensors))).faults
    assert fault.severity == severity
    assert told in fault.title


def test_a_download_that_stopped_half_way(tmp_path: Path) -> None:
    write(tmp_path, V3, WHOLE)
    (tmp_path / "model-1.safetensors").unlink()
    (fault,) = checkpoint.load(str(tmp_path)).faults
    assert "1 of 2 files" in fault.title
    # An index alone, without any shard, is what somebody fetches to ask just this.
    (tmp_path / "model-0.safetensors").unlink()
    assert not checkpoint.load(str(tmp_path)).faults


def test_a_model_of_ones_own_keeps_its_own_facts(tmp_path: Path) -> None:
    config = {k: v for k, v in V3.items() if k not in ("rope_scaling", "quantization_config")}
    config |= {"num_hidden_layers": 4, "kv_lora_rank": 128}
    found = checkpoint.load(str(write(tmp_path, config) / "config.json"))
    assert found.variant.rope.type == "default"
    assert found.variant.quantization is None
    assert found.variant.kv_lora_rank == 128
    assert found.variant.num_hidden_layers == 4
    assert {line.partition(":")[0] for line in found.differs} >= {
        "num_hidden_layers",
        "kv_lora_rank",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "has no config.json"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"architectures": ["BertModel"]}', "of no DeepSeek model"),
        ("{}", "of no DeepSeek model"),
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str | None, told: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(str(tmp_path))
    assert told in caught.value.what
    assert caught.value.next


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256}, "a vocabulary of 128256; deepseek-llm-"),
        ({"architectures": ["LlamaForCausalLM"], "vocab_size": None}, "a vocabulary of None"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "its architecture is Qwen2ForCausalLM"),
        ({"n_routed_experts": "many"}, "n_routed_experts is 'many'; deepseek-v3 has 256"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes'"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": 128}}, "weight_block_size is 128"),
    ],
)  # fmt: skip
def test_what_is_no_deepseek_model_is_refused(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as raised:
        checkpoint.load(str(write(tmp_path, {**V3, **changed})))
    assert told in str(raised.value)


def test_an_older_model_of_a_shared_architecture_is_known(tmp_path: Path) -> None:
    config = json.loads((CONFIGS / "deepseek-llm-7b-chat.json").read_text())
    assert checkpoint.load(str(write(tmp_path, config))).variant.name == "deepseek-llm-7b"
