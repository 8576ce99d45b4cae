"""Routers on logits and biases that real weights seldom give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from asking import UnaskableError

from . import runs
from .observe import positions_of, routing
from .plant import each, overwritten
from .rerouting import biases_of

# What is added to the scores: below zero, around it, far above, and so close that bfloat16 cannot tell.
BIASES = {"below": (-2.0, 0.5), "around": (0.0, 0.3), "above": (3.5, 0.75), "close": (5.0, 0.03)}
UNDERFLOW = -200.0  # a score that float32 has as zero


def routed(llm: Any, model: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Every router asked about logits of our own, for each kind of bias that its model can have.

    `routed|KIND.N.logits` (tokens, experts), `.bias` (experts,), `.weights` and `.ids` (tokens, chosen).
    """
    out: dict[str, Any] = {}
    name, prompt = runs.medium(request)
    own = {"none": (0.0, 0.0)} if not biases_of(model) else BIASES
    for number, (kind, (mean, spread)) in enumerate(own.items()):
        asked = Asked(model, request, seed=number, mean=mean, spread=spread, tokens=len(prompt))
        with asked.planted():
            runs.generate(llm, {name: prompt}, 1, prompt_logits=True)
        out |= {f"routed|{kind}.{key}": value for key, value in asked.answers().items()}
    return out


class Asked:
    """Logits and biases in place of a model's own, and what its routers made of them."""

    def __init__(
        self,
        model: Any,
        request: Mapping[str, Any],
        *,
        seed: int,
        mean: float,
        spread: float,
        tokens: int,
    ) -> None:
        import torch

        config, draw = request["config"], torch.Generator().manual_seed(seed)
        self.model, self.layers = model, list(request["sparse_layers"])
        experts = config["n_routed_experts"]
        shape = len(self.layers), tokens, experts
        self.logits = 2.0 * torch.randn(shape, generator=draw)
        # One token whose scores all vanish, where the weights' sum is nothing to divide by.
        if config.get("scoring_func") == "sigmoid":
            self.logits[:, 0] = UNDERFLOW
        self.bias = mean + spread * torch.randn(len(self.layers), experts, generator=draw)
        self.positions: Any = None
        self.given: dict[int, list[Any]] = {layer: [] for layer in self.layers}
        self.got: list[tuple[Any, Any]] = []

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Put them in place of the model's own inside the block."""
        biases = biases_of(self.model)
        first = self.model.model.layers[0]
        with ExitStack() as stack:
            stack.enter_context(first.register_forward_pre_hook(self._entered, with_kwargs=True))
            for place, layer in enumerate(self.layers):
                gate = self.model.model.layers[layer].mlp.gate
                # Before any other hook, so that a planted router reads these logits, too.
                answer = self._answer(place, layer)
                stack.enter_context(gate.register_forward_hook(answer, prepend=True))
            stack.enter_context(
                each(overwritten(*pair) for pair in zip(biases, self.bias, strict=False))
            )
            stack.enter_context(routing(self.model, self._note))
            yield

    def answers(self) -> dict[str, Any]:
        """What was asked and answered, by layer; `UnaskableError` where a router was not seen."""
        import torch

        passes = len(self.given[self.layers[0]])
        if len(self.got) != passes * len(self.layers):
            raise UnaskableError("the engine's routers could not be watched")
        out = {}
        for place, layer in enumerate(self.layers):
            own = self.got[place :: len(self.layers)]
            out[f"{layer}.logits"] = torch.cat(self.given[layer])
            out[f"{layer}.bias"] = self.bias[place]
            out[f"{layer}.weights"] = torch.cat([weights for weights, _ in own])
            out[f"{layer}.ids"] = torch.cat([ids for _, ids in own])
        return out

    def _entered(self, module: Any, args: Any, kwargs: Any) -> None:
        self.positions = positions_of(args, kwargs).to("cpu").long()

    def _answer(self, place: int, layer: int) -> Callable[..., Any]:
        def hook(module: Any, args: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            rows = self.logits[place][self.positions].to(first.device, first.dtype)
            self.given[layer].append(rows.float().cpu())
            return (rows, *output[1:]) if isinstance(output, tuple) else rows

        return hook

    def _note(self, weights: Any, ids: Any) -> tuple[Any, Any]:
        self.got.append((weights.detach().float().cpu(), ids.detach().long().cpu()))
        return weights, ids
