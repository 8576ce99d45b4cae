"""Read vLLM's parameters back under the checkpoint's own names; plant faults while they load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import older

Stream = Iterable[tuple[str, Any]]


@dataclass
class Loading:
    """What was seen while a checkpoint was loaded."""

    offered: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    unfilled: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)


@contextmanager
def observed(spoil: Callable[[Stream], Stream] | None = None) -> Iterator[Loading]:
    """Watch every load inside the block; `spoil` may plant faults into the stream of weights.

    Parameters are filled with NaN before the load, so that each element that no weight reached
    shows. They are copied right after it, before vLLM packs them for its kernels.
    """
    if older.needed():
        seen = Loading()
        with older.loading(lambda model: _watch_load(model, seen, spoil)):
            yield seen
        return
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    seen, original = Loading(), DefaultModelLoader.load_weights

    def load_weights(loader: Any, model: Any, model_config: Any) -> None:
        initial = _poison(model)
        inner = model.load_weights

        def watched(stream: Stream) -> set[str]:
            loaded = inner(_recorded(spoil(stream) if spoil else stream, seen.offered))
            seen.loaded = sorted(loaded)
            # A planted gap must reach our own checks, not stop vLLM's.
            return set(initial) if spoil else loaded

        model.load_weights = watched
        try:
            original(loader, model, model_config)
        finally:
            del model.load_weights
        _keep(model, initial, seen)

    DefaultModelLoader.load_weights = load_weights
    try:
        yield seen
    finally:
        DefaultModelLoader.load_weights = original


def _watch_load(model: Any, seen: Loading, spoil: Callable[[Stream], Stream] | None) -> None:
    """Let a model watch its own load: it says nothing of what it loaded, so what is filled counts."""
    initial, inner = _poison(model), model.load_weights

    def load_weights(stream: Stream) -> None:
        del model.load_weights
        inner(_recorded(spoil(stream) if spoil else stream, seen.offered))
        _keep(model, initial, seen)
        seen.loaded = sorted(set(seen.parameters) - set(seen.unfilled))

    model.load_weights = load_weights


def _keep(model: Any, initial: Mapping[str, Any], seen: Loading) -> None:
    """Copy what was loaded, and put back what was not; a bias that nothing fills and that is 0 is none."""
    idle = {name for name, p in model.named_parameters() if _idle(name, p, initial)}
    whole = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen.parameters = {name: value for name, value in whole.items() if name not in idle}
    seen.unfilled = [name for name in _heal(model, initial) if name not in idle]


def _idle(name: str, parameter: Any, initial: Mapping[str, Any]) -> bool:
    # What quantised experts make for models that have biases.
    first = initial.get(name) if name.endswith(("w13_bias", "w2_bias")) else None
    return first is not None and not first.any() and bool(parameter.isnan().all())


def _poison(model: Any) -> dict[str, Any]:
    initial = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            initial[name] = parameter.detach().clone()
            parameter.data.fill_(float("nan"))
    return initial


def _gaps(parameter: Any) -> Any:
    """Where a parameter is NaN; PyTorch asks no float of eight bits."""
    return (parameter.float() if parameter.itemsize == 1 else parameter).isnan()


def _refill(parameter: Any, gaps: Any, initial: Any) -> None:
    import torch

    own, first = parameter.data, initial
    if own.itemsize == 1:
        own, first = own.view(torch.uint8), first.view(torch.uint8)
    own[gaps] = first[gaps]


def _heal(model: Any, initial: Mapping[str, Any]) -> list[str]:
    unfilled = []
    for name, parameter in model.named_parameters():
        if name in initial and (gaps := _gaps(parameter)).any():
            unfilled.append(name)
            _refill(parameter, gaps, initial[name])
    return unfilled


def _recorded(stream: Stream, names: list[str]) -> Stream:
    for name, value in stream:
        names.append(name)
        yield name, value


def unfused(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's fused and stacked parameters taken apart, under the published names."""
    out: dict[str, Any] = {}
    for name, value in parameters.items():
        for own, part in _parts(name, value, config):
            out[own] = part
    return out


# What a projection stores, and the side along which fused ones lie beside each other; the inputs' order is
# one for all of them.
SIDES = {"weight": 0, "weight_scale_inv": 0, "qweight": 1, "qzeros": 1, "scales": 1, "g_idx": None}
KIND = "|".join(SIDES)
BLOCK = 128  # rows that share a scale in FP8
HALVES = {"gate_proj": 1, "up_proj": 1}  # whose outputs are equally many


def _parts(name: str, value: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    stem, _, kind = name.rpartition(".")
    owner = stem.rpartition(".")[2]
    if kind in SIDES and (outputs := _fused(owner, config)):
        yield from _split(stem.removesuffix(owner), kind, value, outputs)
    elif found := re.fullmatch(rf"(.*\.mlp\.experts)\.(?:.*\.)?w(13|2)_({KIND})", name):
        yield from _experts(found[1], found[2], found[3], value)
    elif name in ("model.embed_tokens.weight", "lm_head.weight"):
        # vLLM pads the vocabulary; the padding carries no weight of the checkpoint.
        yield name, value[: config["vocab_size"]]
    else:
        yield name, value


def _fused(owner: str, config: Mapping[str, Any]) -> dict[str, int]:
    """The two projections that one is fused of, with the outputs of each; nothing of one that is whole."""
    if owner == "fused_qkv_a_proj":
        latents = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        return {"q_a_proj": config["q_lora_rank"], "kv_a_proj_with_mqa": latents}
    if owner == "wk_weights_proj":
        return {"wk": config["index_head_dim"], "weights_proj": config["index_n_heads"]}
    return HALVES if owner == "gate_up_proj" else {}


def _split(
    stem: str, kind: str, value: Any, outputs: Mapping[str, int]
) -> Iterator[tuple[str, Any]]:
    """A fused tensor as its two parts, which have outputs in this proportion."""
    side, (first, second) = SIDES[kind], outputs.values()
    if side is None:
        parts = value, value
    else:
        length, whole = value.shape[side], first + second
        # Of blocks each part has whole ones, and of words of several numbers, too.
        blocks = kind == "weight_scale_inv" and whole > 2
        own = -(-first // BLOCK) if blocks else length * first // whole
        parts = (value[:own], value[own:]) if side == 0 else (value[:, :own], value[:, own:])
    for name, part in zip(outputs, parts, strict=True):
        yield f"{stem}{name}.{kind}", part


def _experts(stem: str, which: str, kind: str, value: Any) -> Iterator[tuple[str, Any]]:
    for number, expert in enumerate(value):
        if which == "2":
            yield f"{stem}.{number}.down_proj.{kind}", expert
        else:
            yield from _split(f"{stem}.{number}.", kind, expert, HALVES)
