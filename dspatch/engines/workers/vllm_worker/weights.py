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
        seen.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        seen.unfilled = _heal(model, initial)

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
        seen.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
        seen.unfilled = _heal(model, initial)
        seen.loaded = sorted(set(seen.parameters) - set(seen.unfilled))

    model.load_weights = load_weights


def _poison(model: Any) -> dict[str, Any]:
    initial = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            initial[name] = parameter.detach().clone()
            parameter.data.fill_(float("nan"))
    return initial


def _heal(model: Any, initial: Mapping[str, Any]) -> list[str]:
    unfilled = []
    for name, parameter in model.named_parameters():
        if name in initial and (gaps := parameter.isnan()).any():
            unfilled.append(name)
            parameter.data[gaps] = initial[name][gaps]
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


def _parts(name: str, value: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if name.endswith(".fused_qkv_a_proj.weight"):
        stem, rank = name.removesuffix("fused_qkv_a_proj.weight"), config["q_lora_rank"]
        yield f"{stem}q_a_proj.weight", value[:rank]
        yield f"{stem}kv_a_proj_with_mqa.weight", value[rank:]
    elif name.endswith(".indexer.wk_weights_proj.weight"):
        stem, rows = name.removesuffix("wk_weights_proj.weight"), config["index_head_dim"]
        yield f"{stem}wk.weight", value[:rows]
        yield f"{stem}weights_proj.weight", value[rows:]
    elif name.endswith(".gate_up_proj.weight"):
        stem, half = name.removesuffix("gate_up_proj.weight"), value.shape[0] // 2
        yield f"{stem}gate_proj.weight", value[:half]
        yield f"{stem}up_proj.weight", value[half:]
    elif found := re.fullmatch(r"(.*\.mlp\.experts)\.(?:.*\.)?w(13|2)_weight", name):
        yield from _experts(found[1], found[2], value)
    elif name in ("model.embed_tokens.weight", "lm_head.weight"):
        # vLLM pads the vocabulary; the padding carries no weight of the checkpoint.
        yield name, value[: config["vocab_size"]]
    else:
        yield name, value


def _experts(stem: str, which: str, value: Any) -> Iterator[tuple[str, Any]]:
    for number, expert in enumerate(value):
        if which == "2":
            yield f"{stem}.{number}.down_proj.weight", expert
        else:
            half = expert.shape[0] // 2
            yield f"{stem}.{number}.gate_proj.weight", expert[:half]
            yield f"{stem}.{number}.up_proj.weight", expert[half:]
