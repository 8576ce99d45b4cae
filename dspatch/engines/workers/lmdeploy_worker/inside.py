"""What the PyTorch engine computes inside: it runs in this process, op by op, so that hooks on its model see it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from asking import UnaskableError
from batches import rows_of
from states import recorded

from .engine import Started


class Recorder:
    """Tensors by name, joined over the forward passes of one request."""

    def __init__(self) -> None:
        self.states: dict[str, list[Any]] = {}
        self.chosen: dict[int, list[Any]] = {}
        self.forwards: list[int] = []
        self.passes: list[tuple[list[int], list[int]]] = []

    def joined(self, rows: int) -> dict[str, Any]:
        """`layer.N` and `final` (tokens, hidden), `routes.N` (tokens, chosen experts, sorted), `forwards` (passes,).

        The engine computes ahead of what was asked: rows past those of the text are left out.
        """
        import torch

        states = {n: torch.cat(parts)[:rows].float().cpu() for n, parts in self.states.items()}
        forwards = {"forwards": torch.tensor(self.forwards, dtype=torch.int64)}
        return states | self.routed(slice(rows)) | forwards

    def routed(self, rows: slice | list[int]) -> dict[str, Any]:
        """`routes.N` alone, of some rows."""
        import torch

        return {
            f"routes.{layer}": torch.cat(parts)[rows].to(torch.int32).sort(-1)[0].cpu()
            for layer, parts in self.chosen.items()
        }

    def shared(self, texts: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """`TEXT.routes.N` (tokens, chosen) of texts that shared the passes, but for their last tokens.

        A text whose rows are not all there is left out.
        """
        rows = rows_of(self.passes, texts, ahead=True)
        return {
            f"{text}.{name}": value
            for text, own in rows.items()
            for name, value in self.routed(own[: len(texts[text]) - 1]).items()
            if len(own) >= len(texts[text]) - 1
        }


def cache(it: Started) -> dict[str, Any]:
    """What its cache takes of a token, by the bytes behind it. Raises `UnaskableError` where that cannot be told."""
    try:
        held = it.engine.executor.model_agent.cache_engine.gpu_cache
        sizes = it.engine.cache_config
        places = sizes.num_gpu_blocks * sizes.block_size
        kept = [part.untyped_storage() for layer in held for part in layer]
    except (AttributeError, TypeError) as error:
        raise UnaskableError(f"no cache of this engine can be looked at: {error}") from error
    total = sum({one.data_ptr(): one.nbytes() for one in kept}.values())
    return {"kinds": ["latents"], "block_size": sizes.block_size, "bytes_per_token": total / places}


def model_of(it: Started) -> Any:
    """The live model's layers. Raises `UnaskableError` for an engine that has none here, or another kind of it."""
    return whole_of(it).model


def whole_of(it: Started) -> Any:
    """The live model, as the engine calls it; raises as `model_of`."""
    try:
        whole = it.engine.executor.model_agent.patched_model.get_model()
        whole.model.layers[0].self_attn, whole.model.norm
    except (AttributeError, IndexError, TypeError) as error:
        raise UnaskableError(f"no model of this engine can be watched: {error}") from error
    return whole


@contextmanager
def recording(it: Started) -> Iterator[Recorder]:
    """Record the forward passes of the block; errors as of `model_of`."""
    whole, recorder = whole_of(it), Recorder()
    model = whole.model
    with ExitStack() as stack:
        for number, layer in enumerate(model.layers):
            stack.enter_context(recorded(layer, recorder, f"layer.{number}"))
            if (gate := getattr(layer.mlp, "gate", None)) is not None:
                stack.enter_context(_routing(gate, recorder, number))
        stack.enter_context(recorded(model.norm, recorder, "final"))
        # What calls the layers calls their model's `forward` itself, by which no hook of that runs.
        stack.enter_context(whole.register_forward_pre_hook(_noting(recorder), with_kwargs=True))
        yield recorder


def _noting(recorder: Recorder) -> Callable[..., None]:
    """Record which tokens a pass has, and at which positions."""

    def hook(module: Any, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        ids, positions = (bound[name].flatten().tolist() for name in ("input_ids", "position_ids"))
        recorder.passes.append((ids, positions))

    return hook


class Fed:
    """Each layer given the right state of the one before, so that no error reaches the next one.

    `states` are those after each layer, (tokens, hidden); what a layer was given is kept, the embedding's of the first.
    """

    def __init__(self, model: Any, states: Sequence[Any]) -> None:
        self.model, self.states = model, states
        self.given: list[list[Any]] = [[] for _ in model.layers]

    def inputs(self, layer: int, rows: int) -> Any:
        """What a layer was given, (rows, hidden)."""
        import torch

        return torch.cat(self.given[layer])[:rows]

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Replace the inputs of layers within the block."""
        with ExitStack() as stack:
            for number, layer in enumerate(self.model.layers):
                hook = self._hook(number, inspect.signature(layer.forward))
                stack.enter_context(layer.register_forward_pre_hook(hook, with_kwargs=True))
            yield

    def _hook(self, number: int, signature: inspect.Signature) -> Callable[..., Any]:
        def hook(layer: Any, args: Any, kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            hidden, residual = bound.arguments["hidden_states"], bound.arguments.get("residual")
            whole = hidden if residual is None else hidden + residual
            if number:
                # Prompts are read in order; past their end the engine computes ahead, which nobody looks at.
                start = sum(len(part) for part in self.given[number])
                state = self.states[number - 1][start : start + hidden.shape[-2]]
                if len(state) == hidden.shape[-2]:
                    whole = state.to(hidden.device, hidden.dtype).view(hidden.shape)
                    bound.arguments["hidden_states"] = whole.new_zeros(whole.shape)
                    bound.arguments["residual"] = whole
            # A copy: some kernels add to the residual in place.
            self.given[number].append(whole.detach().float().flatten(0, -2).cpu().clone())
            return bound.args, bound.kwargs

        return hook


@contextmanager
def _routing(gate: Any, recorder: Recorder, layer: int) -> Iterator[None]:
    """Record the experts that a router chose: it returns their weights and their numbers."""

    def hook(module: Any, args: Any, output: Any) -> None:
        recorder.chosen.setdefault(layer, []).append(output[1].detach().flatten(0, -2).clone())

    with gate.register_forward_hook(hook):
        yield
