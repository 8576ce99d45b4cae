"""Tensor parallelism by arithmetic: which tensors of a model a number of processes cannot split evenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dspatch.errors import ParallelError


@dataclass(frozen=True, kw_only=True)
class Unsplit:
    """A tensor that cannot be split: by its name in the checkpoint, and what stands in the way."""

    tensor: str
    why: str


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A tensor that engines split along one side: `units` whole parts of `length` numbers each.

    `down` says that its columns are split, not its rows.
    """

    tensor: str
    what: str
    units: int
    length: int = 1
    down: bool = False


def refuse(name: str, config: Mapping[str, Any], degree: int) -> None:
    """Raise `ParallelError`, naming the tensors, when a model cannot be split into so many parts."""
    found = list(unsplit(config, degree))
    if found:
        raise ParallelError(
            f"{name} cannot be split among {degree} processes: {found[0].tensor}.",
            why="\n        ".join(f"{each.tensor}: {each.why}" for each in found),
            next=f"take a number of processes that divides: {_dividing(config, degree)}",
        )


def unsplit(config: Mapping[str, Any], degree: int) -> Iterator[Unsplit]:
    """The tensors that `degree` processes cannot share, one of each kind; none for one process.

    `config` is the model's config.json. Heads and hidden sizes must divide; of weights quantised in
    blocks or groups, whole blocks must go to each process.
    """
    for each in _splits(config):
        if each.units % degree:
            yield Unsplit(tensor=each.tensor, why=f"{each.units} {each.what} by {degree}")
            continue
        share, block = each.units * each.length // degree, _block(config, down=each.down)
        if degree > 1 and block and share % block:
            side = "columns" if each.down else "rows"
            why = f"{share} {side} for each of {degree} processes are no whole blocks of {block}"
            yield Unsplit(tensor=each.tensor, why=why)


def _splits(config: Mapping[str, Any]) -> Iterator[_Split]:
    dense = config.get("first_k_dense_replace", 0) if config.get("n_routed_experts") else 1
    yield from _attention(config)
    if dense:
        yield from _ffn(
            "model.layers.0.mlp", "columns of intermediate_size", config["intermediate_size"]
        )
    if config.get("n_routed_experts"):
        layer = config.get("first_k_dense_replace", 0)
        width = config["moe_intermediate_size"]
        place = f"model.layers.{layer}.mlp"
        yield from _ffn(f"{place}.experts.0", "columns of moe_intermediate_size", width)
        if shared := config.get("n_shared_experts"):
            what = "columns of the shared experts"
            yield from _ffn(f"{place}.shared_experts", what, width * shared)


def _attention(config: Mapping[str, Any]) -> Iterator[_Split]:
    heads, place = config["num_attention_heads"], "model.layers.0.self_attn"
    if not config.get("kv_lora_rank"):
        size = config.get("head_dim") or config["hidden_size"] // heads
        yield _Split(tensor=f"{place}.q_proj.weight", what="heads", units=heads, length=size)
        yield _Split(
            tensor=f"{place}.o_proj.weight", what="heads", units=heads, length=size, down=True
        )
        return
    nope, rope, value = (config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    query = "q_b_proj" if config.get("q_lora_rank") else "q_proj"
    rows = {query: nope + rope, "kv_b_proj": nope + value}
    for name, length in rows.items():
        yield _Split(tensor=f"{place}.{name}.weight", what="heads", units=heads, length=length)
    yield _Split(
        tensor=f"{place}.o_proj.weight", what="heads", units=heads, length=value, down=True
    )


def _ffn(place: str, what: str, width: int) -> Iterator[_Split]:
    yield _Split(tensor=f"{place}.gate_proj.weight", what=what, units=width)
    yield _Split(tensor=f"{place}.down_proj.weight", what=what, units=width, down=True)


def _block(config: Mapping[str, Any], *, down: bool) -> int:
    """How many rows, or columns, of a weight share a scale, and so must stay together; 0: any."""
    stated = config.get("quantization_config") or {}
    if stated.get("weight_block_size"):
        rows, columns = stated["weight_block_size"]
        return int(columns if down else rows)
    # AWQ and GPTQ: groups of inputs, which only a split of columns cuts through.
    group = int(stated.get("group_size") or 0)
    return group if down and group > 0 else 0


def _dividing(config: Mapping[str, Any], beside: int) -> str:
    heads = int(config["num_attention_heads"])
    good = [n for n in range(1, heads + 1) if not any(unsplit(config, n))]
    return ", ".join(map(str, good)) or f"1, as nothing else does ({beside} does not)"
