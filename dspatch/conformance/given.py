"""A small checkpoint of the user's own, as a model to prove an engine with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspatch import files, identify
from dspatch.conformance.small import Case, plain, rules
from dspatch.engines import Options
from dspatch.errors import CheckpointError

# What DeepSpeed's ZeRO leaves of a run, in the folder itself or in that of a step.
SHARDS = "**/*zero_pp_rank_*_states.pt"
# What the model classes take where config.json says nothing, by the kind of router.
ROUTERS = {
    "deepseek_v2": {"topk_method": "greedy", "scoring_func": "softmax"},
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "deepseek_v32": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
}
DEFAULTS = {
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "q_lora_rank": None,
}
NEEDED = (
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"),
    *("n_shared_experts", "num_experts_per_tok", "first_k_dense_replace", "num_hidden_layers"),
    *("num_attention_heads", "hidden_size", "intermediate_size", "moe_intermediate_size"),
    *("vocab_size", "rms_norm_eps", "max_position_embeddings"),
)
SIZES = tuple(key for key in NEEDED if key != "rms_norm_eps")
YARN = ("factor", "mscale", "mscale_all_dim", "original_max_position_embeddings")
AGAINST = (
    "what quantisation loses is measured by --quantised-against UNQUANTISED --checkpoint QUANTISED"
)
COPIES = 4  # of the weights in float32, over transformers, its control, the twin and the engine


def case(folder: Path, *, quantised: bool = False) -> Case:
    """The checkpoint in a folder: config.json and safetensors, small enough for here.

    Where it may be `quantised`, `stored` says how it is.
    Raises `CheckpointError` that says what is missing, or what it is that cannot be proven.
    """
    _put_together(folder)
    config = _config(folder)
    stored = _stored(folder, config, quantised)
    own = _facts(folder, config)
    weights = tensors(folder)
    _fits(folder, weights)
    digest = [files.sha256(path) for path in (folder / "config.json", *weights)]
    name = folder.resolve().name
    return Case(
        name=name,
        variant=name,
        config=own,
        stored=stored,
        source=folder.resolve(),
        sources=tuple(digest),
    )


def tensors(folder: Path) -> list[Path]:
    """The safetensors of a checkpoint; `CheckpointError` when there are none."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise CheckpointError(
            f"{folder} has no safetensors.", next="name the folder that holds the weights"
        )
    return found


def _put_together(folder: Path) -> None:
    if any(folder.glob("*.safetensors")) or not any(folder.glob(SHARDS)):
        return
    raise CheckpointError(
        f"{folder} holds the shards of a training run (DeepSpeed ZeRO), no checkpoint that an engine loads.",
        why="each process wrote its part of every weight; only all of them together are the weights",
        next=f"put them together: `cd {folder} && python zero_to_fp32.py . whole --safe_serialization`"
        " (DeepSpeed wrote that script there), copy config.json into `whole`, and name that folder",
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        return identify.read_object(folder / "config.json")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} has no config.json that can be read.",
            why=str(error),
            next="name the folder of a checkpoint",
        ) from None


def _facts(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the oracle must know, under published names, whoever wrote config.json."""
    stated = {k: v for k, v in identify.read(config).items() if v != identify.ABSENT}
    kinds = rules()["model-types"]
    architecture = stated.get("architecture")
    if architecture not in kinds:
        raise _unproven(folder, f"its architecture is {architecture}", ", ".join(kinds))
    kind = kinds[architecture]
    own = {**DEFAULTS, **ROUTERS[kind], **dict(rules()["constants"]), **plain(stated)}
    if missing := [key for key in NEEDED if own.get(key) is None]:
        raise CheckpointError(
            f"{folder}/config.json lacks {', '.join(missing)}.",
            next="add what it lacks; the published config.json of the model has it",
        )
    if wrong := [f"{key} is {own[key]!r}" for key in SIZES if type(own[key]) is not int]:
        raise CheckpointError(
            f"{folder}/config.json states sizes that are no whole numbers.",
            why=", ".join(wrong),
            next="write them as numbers, as the published config.json of the model does",
        )
    if own["vocab_size"] < (least := rules()["sizes"]["vocab_size"]):
        why = "its vocabulary is too small for the prompts"
        raise _unproven(folder, why, f"{least} tokens and more")
    if own["max_position_embeddings"] < (length := Options.max_model_len):
        raise _unproven(folder, "it has too few positions for the prompts", f"{length} and more")
    rope = {key.removeprefix("rope."): v for key, v in stated.items() if key.startswith("rope.")}
    return {
        **own,
        "architectures": [architecture],
        "model_type": kind,
        "rope_theta": rope.get("theta", 10000.0),
        "rope_scaling": _scaling(folder, rope),
    }


def _stored(folder: Path, config: Mapping[str, Any], quantised: bool) -> str:
    """How its weights are quantised, by the names of small.toml; empty where they are not."""
    said = config.get("quantization_config")
    if not said:
        return ""
    if not quantised:
        raise _unproven(folder, "it is quantised", f"unquantised weights; {AGAINST}")
    method, bits = said.get("quant_method"), said.get("bits", said.get("w_bit"))
    if method == "fp8" and said.get("weight_block_size"):
        return "fp8-blocks"
    if method == "awq" and bits == 4 and said.get("zero_point", True):
        return "awq"
    if method == "gptq" and bits in (4, 8):
        return "gptq" if bits == 4 else "gptq-8"
    known = "FP8 in blocks, AWQ of four bits, GPTQ of four or eight"
    raise _unproven(folder, f"it is quantised as {method}, {bits} bits", known)


def _scaling(folder: Path, rope: Mapping[str, Any]) -> dict[str, Any] | None:
    if rope.get("type", "default") == "default":
        return None
    if rope["type"] != "yarn" or any(rope.get(key) is None for key in YARN):
        raise _unproven(
            folder, f"its RoPE is {rope}", f"plain RoPE, or YaRN with {', '.join(YARN)}"
        )
    return {"beta_fast": 32, "beta_slow": 1, **{k: v for k, v in rope.items() if k != "theta"}}


def _fits(folder: Path, weights: list[Path]) -> None:
    need = COPIES * 2 * sum(path.stat().st_size for path in weights)
    have = _available()
    if need > have:
        raise CheckpointError(
            f"{folder} is too large to be proven on this machine.",
            why=f"up to {need / 1e9:.1f} GB are needed, {have / 1e9:.1f} GB are free",
            next="cut the model down to a few layers and experts: every operation stays the same",
        )


def _available() -> int:
    """Free memory in bytes, as the kernel estimates it."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    row = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(row.split()[1]) * 1024


def _unproven(folder: Path, why: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} is no checkpoint that can be proven.",
        why=why,
        next=f"what can be proven: {what}",
    )
