"""The runs of one engine: prompts alone, at once, once more from the cache of prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asking import UnaskableError

from . import inside
from .engine import Answer, Asked, Started

Tensors = dict[str, Any]
RINSED = 3  # tokens that nobody looks at, after a request that only reads


def alone(it: Started, request: Mapping[str, Any]) -> Tensors:
    """Each prompt by itself: tokens, logits of every position, and how it was read where that is told."""
    out: Tensors = {}
    rounds: dict[str, int] = {}
    for name, prompt in request["prompts"].items():
        before = it.ticks()
        [answer] = asked(it, [Asked(prompt, request["steps"], "all")])
        out |= told(it, name, answer, request["steps"], len(prompt) - 1)
        # The PyTorch engine reads a prompt twice; watched, it shows its passes.
        if before is not None and it.turbomind:
            rounds[name] = (it.ticks() or 0) - before
    return out | _passes(rounds, request)


def _passes(rounds: Mapping[str, int], request: Mapping[str, Any]) -> Tensors:
    """The tokens of each pass, by how many more rounds a scheduler went than for the shortest prompt."""
    prompts, size = request["prompts"], request["options"]["max_num_batched_tokens"]
    one = min(rounds, key=lambda name: len(prompts[name]), default="")
    if not one or len(prompts[one]) > size:
        return {}
    out = {}
    for name, count in rounds.items():
        length = len(prompts[name])
        chunks = [min(size, length - start) for start in range(0, length, size)]
        read = chunks if 1 + count - rounds[one] >= len(chunks) else [length]
        out[f"{name}.forwards"] = integers([*read, *[1] * (request["steps"] - 1)])
    return out


def watched(it: Started, request: Mapping[str, Any]) -> Tensors:
    """The same with what the engine computes inside. Raises `UnaskableError` where nothing can be watched."""
    out: Tensors = {}
    for name, prompt in request["prompts"].items():
        with inside.recording(it) as recorder:
            [answer] = it.ask([Asked(prompt, request["steps"], "all")])
        rinse(it, prompt)
        found = told(it, name, answer, request["steps"], len(prompt) - 1)
        seen = recorder.joined(len(prompt) + request["steps"] - 1)
        out |= found | {f"{name}.{key}": value for key, value in seen.items()}
    return out


def together(it: Started, request: Mapping[str, Any]) -> Tensors:
    """All prompts at once, so that prefill and decode of different requests share steps.

    With `PROMPT.routes.N` (tokens, chosen) where the engine is watched, and every row is known to be somebody's.
    """
    prompts, steps = request["prompts"], request["steps"]
    requests = [Asked(prompt, steps, "all") for prompt in prompts.values()]
    if not watchable(it):
        answers, routes = asked(it, requests), {}
    else:
        with inside.recording(it) as recorder:
            answers = it.generate(requests)
        it.complete(answers, requests)
        rinse(it, requests[0].prompt)
        pairs = zip(prompts.items(), answers, strict=True)
        routes = recorder.shared({name: [*prompt, *one.tokens] for (name, prompt), one in pairs})
    out: Tensors = dict(routes)
    for (name, prompt), answer in zip(prompts.items(), answers, strict=True):
        out |= told(it, name, answer, steps, len(prompt) - 1)
    return out


def again(it: Started, request: Mapping[str, Any]) -> Tensors:
    """Each prompt once more, after it was read once: an engine with a cache of prefixes has it there."""
    out: Tensors = {}
    for name, prompt in request["prompts"].items():
        it.ask([Asked(prompt, 2)])
        out |= stepped(it, name, Asked(prompt, request["steps"], "steps"))
    return out


def stepped(it: Started, name: str, request: Asked) -> Tensors:
    """One request by itself, its steps alone; with the experts of what it read, where the engine is watched."""
    routes: Tensors = {}
    if watchable(it):
        with inside.recording(it) as recorder:
            [answer] = it.ask([request])
        rows = len(request.prompt) + request.steps - 1 - (answer.cached or 0)
        routes = recorder.routed(slice(rows))
    else:
        [answer] = it.ask([request])
    named = {f"{name}.{key}": value for key, value in routes.items()}
    return named | told(it, name, answer, request.steps, 0)


def watchable(it: Started) -> bool:
    """Whether hooks see what the engine computes; of one with a planted fault nothing is looked at but its answers."""
    if it.turbomind or it.faulty:
        return False
    try:
        inside.model_of(it)
    except UnaskableError:
        return False
    return True


def asked(it: Started, requests: Sequence[Asked]) -> list[Answer]:
    """Answers, and after them what an engine that read prompts might mix up with the next request's."""
    answers = it.ask(requests)
    if not it.turbomind:
        rinse(it, requests[0].prompt)
    return answers


def rinse(it: Started, prompt: Sequence[int]) -> None:
    """A short answer that nobody looks at, so that what reading leaves behind is in no other run."""
    it.ask([Asked(prompt, RINSED)])


def told(it: Started, name: str, answer: Answer, steps: int, read: int) -> Tensors:
    """The tensors of one answer; of one that broke off, what lacks is no token and no number."""
    import torch

    tokens = (answer.tokens + [-1] * steps)[:steps]
    rows = read + steps
    logits = torch.full((rows, it.vocabulary), float("nan"))
    if answer.logits is not None:
        known = answer.logits[:rows]
        logits[: len(known)] = known
    out = {f"{name}.tokens": integers(tokens), f"{name}.logits": logits}
    if answer.cached is not None:
        out[f"{name}.cached"] = integers([answer.cached])
    return out


def medium(request: Mapping[str, Any]) -> tuple[str, list[int]]:
    """A prompt of several blocks that is read in one pass."""
    name, prompt = list(request["prompts"].items())[-2]
    return name, prompt


def integers(values: Sequence[int]) -> Any:
    """Numbers as an int64 tensor."""
    import torch

    return torch.tensor(list(values), dtype=torch.int64)
