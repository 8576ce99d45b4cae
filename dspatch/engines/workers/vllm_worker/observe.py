"""Record what the model computes inside: every layer's hidden state, what routers and indexers chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from batches import StrayRowError, rows_of
from states import recorded

Choose = Callable[..., tuple[Any, Any]]


class Recorder:
    """Tensors by name, joined over the forward passes of one run."""

    def __init__(self) -> None:
        self.states: dict[str, list[Any]] = {}
        self.chosen: dict[str, list[Any]] = {}
        self.routes: list[Any] = []
        self.forwards: list[int] = []
        self.ids: list[Any] = []
        self.positions: list[Any] = []

    def joined(self, sparse_layers: list[int]) -> dict[str, Any]:
        """`layer.N` and `final` (tokens, hidden), `routes.N` (tokens, chosen experts, sorted).

        Of a model with an indexer also `chosen.N` (tokens, most keys; sorted, -1 for none).
        """
        import torch

        out = {name: torch.cat(parts) for name, parts in self.states.items()}
        out |= {name: torch.cat(parts).sort(-1)[0] for name, parts in self.chosen.items()}
        return out | self.routed(sparse_layers)

    def routed(self, sparse_layers: list[int]) -> dict[str, Any]:
        """`routes.N` alone; nothing where a router was not watched."""
        import torch

        # The routers are called once a forward pass each, in the order of the layers.
        if len(self.routes) != len(sparse_layers) * len(self.forwards):
            return {}
        return {
            f"routes.{layer}": torch.cat(self.routes[place :: len(sparse_layers)])
            .to(torch.int32)
            .sort(-1)[0]
            for place, layer in enumerate(sparse_layers)
        }

    def shared(
        self, sparse_layers: list[int], texts: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        """`TEXT.routes.N` (tokens, chosen) of texts that shared the passes; nothing where their rows cannot be told."""
        passes = [
            (ids.flatten().tolist(), positions.flatten().tolist())
            for ids, positions in zip(self.ids, self.positions, strict=False)
        ]
        try:
            rows = rows_of(passes, texts)
        except StrayRowError:
            return {}
        found = self.routed(sparse_layers)
        return {
            f"{text}.{name}": value[own]
            for text, own in rows.items()
            for name, value in found.items()
            if len(own) == len(texts[text])
        }


@contextmanager
def recording(model: Any) -> Iterator[Recorder]:
    """Record the forward passes of the block."""
    recorder = Recorder()
    with ExitStack() as stack:
        for number, layer in enumerate(model.model.layers):
            stack.enter_context(recorded(layer, recorder, f"layer.{number}"))
            if (indexer := indexer_of(layer)) is not None:
                stack.enter_context(_choosing(indexer, recorder, f"chosen.{number}"))
        stack.enter_context(recorded(model.model.norm, recorder, "final"))
        stack.enter_context(routing(model, lambda *a, **k: _note(recorder, *a, **k)))
        yield recorder


@contextmanager
def recording_routes(model: Any) -> Iterator[Recorder]:
    """Record where routers send tokens, and which tokens a pass has, of any number of texts at once."""
    recorder = Recorder()

    def embedded(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        ids = args[0] if args else next(iter(kwargs.values()))
        recorder.ids.append(ids.detach().clone())

    def entered(layer: Any, args: Any, kwargs: Any) -> None:
        positions = positions_of(args, kwargs)
        recorder.positions.append(positions.detach().clone())
        recorder.forwards.append(len(positions))

    with (
        model.model.embed_tokens.register_forward_hook(embedded, with_kwargs=True),
        model.model.layers[0].register_forward_pre_hook(entered, with_kwargs=True),
        routing(model, lambda *a, **k: _note(recorder, *a, **k)),
    ):
        yield recorder


def positions_of(args: Any, kwargs: Any) -> Any:
    """The positions (tokens,) that a decoder layer is called with."""
    return kwargs["positions"] if "positions" in kwargs else args[0]


def indexer_of(layer: Any) -> Any:
    """What chooses the keys that a layer's tokens attend to; None where they attend to all."""
    return getattr(layer.self_attn, "indexer", None)


@contextmanager
def _choosing(indexer: Any, recorder: Recorder, name: str) -> Iterator[None]:
    """Record what the indexer wrote to the buffer that all layers share."""

    def hook(module: Any, args: Any, output: Any) -> None:
        rows = indexer.topk_indices_buffer[: args[0].shape[0], : indexer.topk_tokens]
        recorder.chosen.setdefault(name, []).append(rows.clone())

    with indexer.register_forward_hook(hook):
        yield


def _note(recorder: Recorder, weights: Any, ids: Any) -> tuple[Any, Any]:
    recorder.routes.append(ids.detach().clone())
    return weights, ids


@contextmanager
def routing(model: Any, change: Callable[[Any, Any], tuple[Any, Any]]) -> Iterator[None]:
    """Pass every router's (weights, ids) through `change` within the block.

    vLLM routes through a router object beside each layer of experts or, in its older CPU kernels,
    through one module function; whichever exists is wrapped.
    """
    owners = {id(r): r for m in model.modules() if (r := _router(m)) is not None}
    places = [*owners.values(), *_routing_modules()]
    saved = [(place, vars(place).get("select_experts")) for place in places]
    for place in places:
        place.select_experts = _wrapped(place.select_experts, change)
    try:
        yield
    finally:
        for place, before in saved:
            if before is None:
                del place.select_experts
            else:
                place.select_experts = before


def _router(module: Any) -> Any:
    router = getattr(module, "router", None)
    return router if hasattr(router, "select_experts") else None


def _routing_modules() -> list[Any]:
    import importlib

    found = []
    for name in ("fused_moe.cpu_fused_moe", "fused_moe.cpu_experts", "cpu_experts"):
        with suppress(ImportError):
            found.append(importlib.import_module(f"vllm.model_executor.layers.{name}"))
    return [module for module in found if hasattr(module, "select_experts")]


def _wrapped(inner: Choose, change: Callable[[Any, Any], tuple[Any, Any]]) -> Choose:
    def select_experts(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        weights, ids = inner(*args, **kwargs)
        return change(weights, ids)

    return select_experts
