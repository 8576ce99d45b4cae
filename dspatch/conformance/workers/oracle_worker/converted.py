"""Weights that an engine converted, run as it runs them in float64, held against transformers and the twin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from . import metrics, spoiled, twin
from .golden import load
from .turbomind import TurboMind

Place = tuple[int, str]
Seen = dict[Place, tuple[Tensor, Tensor]]


class Converted(Protocol):
    """An engine's arithmetic on its own tensors; hidden states are (tokens, hidden)."""

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        """Attention of one layer, its norm before it not included."""

    def feed_forward(self, layer: int, hidden: Tensor) -> Tensor:
        """Dense or shared part and experts of one layer, its norm before it not included."""

    def __call__(self, ids: list[int]) -> Tensor:
        """Logits (tokens, vocab) of a whole sequence."""


def engine(layout: Mapping[str, Any], config: Mapping[str, Any], tensors: Any) -> Converted:
    """The arithmetic that `layout` names, with its options."""
    options = {key: value for key, value in layout.items() if key != "name"}
    return {"turbomind": TurboMind}[layout["name"]](config, tensors, **options)


def measure(
    checkpoint: Path,
    given: Path,
    converted: Path,
    layout: Mapping[str, Any],
    prompt: list[int],
    faults: Sequence[str],
) -> dict[str, dict[str, float]]:
    """By fault, with `""` for none: the worst layer's relative difference of each operation.

    `given` is the folder that was converted, of a checkpoint that stands for the weights in `checkpoint`;
    `converted` is one with `engine.json`, the configuration as the engine reads it, and
    `engine.safetensors`. Each layer is given transformers' own input, so that an error stands where
    it arises. `attention` and `moe` (layers with experts; `dense` the others) are held against
    transformers in float64, `logits` too, over the whole model; `exact` is the worst difference from
    the second model. See `metrics.relative`.
    """
    from safetensors.torch import load_file

    known = json.loads((checkpoint / "oracle.json").read_text())
    weights = {k: v.double() for k, v in load_file(checkpoint / "model.safetensors").items()}
    seen, logits = _transformers(checkpoint, prompt)
    second = {at: _second(known, weights, *at, hidden) for at, (hidden, _) in seen.items()}
    found = {}
    for fault in ("", *faults):
        config = json.loads((converted / "engine.json").read_text())
        tensors = load_file(converted / "engine.safetensors")
        if fault:
            spoiled.plant(fault, config, tensors, given)
        model = engine(layout, config, tensors)
        worst = _worst(model, seen, second)
        found[fault] = {**worst, "logits": metrics.relative(model(prompt), logits)}
    return found


def _worst(model: Converted, seen: Seen, second: Mapping[Place, Tensor]) -> dict[str, float]:
    worst = {"attention": 0.0, "dense": 0.0, "moe": 0.0, "exact": 0.0}
    for (layer, kind), (given, expected) in seen.items():
        run = model.attention if kind == "attention" else model.feed_forward
        got = run(layer, given)
        worst[kind] = max(worst[kind], metrics.relative(got, expected))
        worst["exact"] = max(worst["exact"], metrics.relative(got, second[layer, kind]))
    return worst


def _second(
    config: Mapping[str, Any], weights: Any, layer: int, kind: str, hidden: Tensor
) -> Tensor:
    part = twin.below(weights, f"model.layers.{layer}.")
    if kind == "attention":
        own = twin.below(part, "self_attn.")
        return twin.attention(config, own, hidden, twin.future(len(hidden)))
    return twin.feed_forward(config, twin.below(part, "mlp."), hidden)


def _transformers(folder: Path, prompt: list[int]) -> tuple[Seen, Tensor]:
    """Input and output of each part of each layer, and the logits, of transformers in float64."""
    model = load(folder, "eager", torch.float64)
    with _watched(model) as seen, torch.no_grad():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return seen, logits


@contextmanager
def _watched(model: Any) -> Iterator[Seen]:
    seen: Seen = {}

    def watch(layer: int, kind: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            result = output[0] if isinstance(output, tuple) else output
            width = given.shape[-1]
            seen[layer, kind] = (given.reshape(-1, width), result.reshape(-1, width))

        return hook

    with ExitStack() as stack:
        for number, layer in enumerate(model.model.layers):
            kind = "moe" if hasattr(layer.mlp, "gate") else "dense"
            for module, name in ((layer.self_attn, "attention"), (layer.mlp, kind)):
                hook = watch(number, name)
                stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield seen
