"""The runs of one engine: prompts alone, at once, again from the prefix cache, under faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from asking import UnaskableError
from kept import cause

from . import older
from .faults import HOOKS
from .observe import recording, recording_routes
from .places import Places, watching

Prompts = Mapping[str, list[int]]
Tensors = dict[str, Any]


def alone(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """Each prompt by itself: logits of every position, states, operations, routers' choices."""
    out: Tensors = {}
    with watching(model, request) as places:
        for name, prompt in request["prompts"].items():
            _by_itself(places, name)
            with recording(model) as recorder:
                result = generate(llm, {name: prompt}, request["steps"], prompt_logits=True)
            found = {key: value for key, value in result[name].items() if key != "cached"}
            found |= recorder.joined(request["sparse_layers"])
            out |= {f"{name}.{key}": value for key, value in found.items()}
            out[f"{name}.forwards"] = integers(recorder.forwards)
    return out | _joined(places, request)


def together(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """All prompts in one call, so that prefill and decode of different requests share steps.

    With `PROMPT.routes.N` (tokens, chosen) where every row of the passes is known to be somebody's.
    """
    prompts = request["prompts"]
    with watching(model, request) as places, recording_routes(model) as recorder:
        result = generate(llm, prompts, request["steps"], prompt_logits=True)
    found = _flat(result) | recorder.shared(request["sparse_layers"], read(prompts, result))
    return found | _joined(places, request)


def read(prompts: Prompts, results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[int]]:
    """What an engine read of each text: its prompt, and all that it generated but the last token."""
    return {
        name: [*prompt, *results[name]["tokens"].tolist()[:-1]] for name, prompt in prompts.items()
    }


def again(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """Each prompt once more, without prompt logits, which would bypass the prefix cache.

    `PROMPT.routes.N` are those of the tokens behind the `cached` ones.
    """
    out: Tensors = {}
    with watching(model, request) as places:
        for name, prompt in request["prompts"].items():
            _by_itself(places, name)
            with recording_routes(model) as recorder:
                found = _flat(generate(llm, {name: prompt}, request["steps"], prompt_logits=False))
            routes = recorder.routed(request["sparse_layers"])
            out |= found | {f"{name}.{key}": value for key, value in routes.items()}
    return out | _joined(places, request)


def _by_itself(places: Places | None, name: str) -> None:
    if places:
        places.alone(name)


def _joined(places: Places | None, request: Mapping[str, Any]) -> Tensors:
    return places.joined(request["sparse_layers"]) if places else {}


def faulty(
    llm: Any, model: Any, request: Mapping[str, Any], probes: Mapping[str, Callable[..., Tensors]]
) -> tuple[Tensors, dict[str, str]]:
    """One run under each planted fault; and why a fault could not be planted in this engine.

    `probes` are the runs beside the three of this module.
    """
    kinds: dict[str, Callable[[], Tensors]] = {
        "alone": lambda: alone(llm, model, request),
        "together": lambda: together(llm, model, request),
        "again": lambda: again(llm, model, request),
        **{name: partial(probe, llm, model, request) for name, probe in probes.items()},
    }
    out: Tensors = {}
    refused: dict[str, str] = {}
    for fault in request["hook_faults"]:
        name, run = fault["name"], fault["run"]
        forget(llm)
        if run == "again":
            again(llm, model, request)
        try:
            with HOOKS[fault["hook"]](model, request["config"]):
                found = kinds[run]()
        except UnaskableError as error:
            refused[name] = str(error)
        except Exception as error:
            refused[name] = f"it broke: {cause(error)}"
        else:
            out |= {f"{name}:{key}": value for key, value in found.items()}
    forget(llm)
    return out, refused


def forget(llm: Any) -> None:
    """Empty the prefix cache, where the engine has one that can be emptied."""
    if not older.needed():
        llm.reset_prefix_cache()


def generate(
    llm: Any, prompts: Prompts, steps: int, *, prompt_logits: bool
) -> dict[str, dict[str, Any]]:
    """Greedy tokens and raw logits: of prompt positions and steps, or of the steps only."""
    from vllm import SamplingParams

    every = every_token(llm)
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=steps,
        ignore_eos=True,
        detokenize=False,
        logprobs=every,
        prompt_logprobs=every if prompt_logits else None,
        **flat(),
    )
    outputs = older.generated(llm, list(prompts.values()), sampling)
    return {name: _result(output) for name, output in zip(prompts, outputs, strict=True)}


def every_token(llm: Any) -> int:
    """How an engine is asked for the logits of all tokens."""
    count: int = llm.llm_engine.model_config.get_vocab_size() if older.needed() else -1
    return count


def flat() -> dict[str, bool]:
    """Asks for log-probabilities in flat lists, where a release has them: an object a token costs it seconds."""
    from vllm import SamplingParams

    return {"flat_logprobs": True} if hasattr(SamplingParams, "flat_logprobs") else {}


def _result(output: Any) -> dict[str, Any]:
    import torch

    # The first prompt position has no logits: nothing predicts it.
    read = [row for row in rows_of(output.prompt_logprobs or ()) if len(row)]
    return {
        "tokens": integers(list(output.outputs[0].token_ids)),
        "logits": torch.stack([*read, *rows_of(output.outputs[0].logprobs)]),
        "cached": integers([getattr(output, "num_cached_tokens", None) or 0]),
    }


def rows_of(found: Any) -> Iterator[Any]:
    """The raw logits of each position, (vocab,); of one without any, an empty tensor."""
    if hasattr(found, "start_indices"):
        for start, end in zip(found.start_indices, found.end_indices, strict=True):
            yield _row(found.token_ids[start:end], found.logprobs[start:end])
    else:
        for row in found:
            entries = row or {}
            yield _row(list(entries), [entry.logprob for entry in entries.values()])


def _row(tokens: list[int], logits: list[float]) -> Any:
    import torch

    # A token that was drawn is named twice.
    values = torch.full((len(set(tokens)),), float("nan"))
    values[torch.tensor(tokens, dtype=torch.int64)] = torch.tensor(logits)
    return values


def medium(request: Mapping[str, Any]) -> tuple[str, list[int]]:
    """A prompt of several blocks that is read in one pass."""
    name, prompt = list(request["prompts"].items())[-2]
    return name, prompt


def integers(values: list[int]) -> Any:
    """Numbers as an int64 tensor."""
    import torch

    return torch.tensor(values, dtype=torch.int64)


def _flat(results: Mapping[str, Mapping[str, Any]]) -> Tensors:
    return {
        f"{name}.{key}": value for name, found in results.items() for key, value in found.items()
    }
