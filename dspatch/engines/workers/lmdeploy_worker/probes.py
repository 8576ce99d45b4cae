"""Runs that ask one thing each of an engine that shows nothing inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import passkeys
from asking import UnaskableError

from . import inside, runs
from .engine import Answer, Asked, Started

Tensors = dict[str, Any]
Probe = Callable[[Started, Mapping[str, Any]], Tensors]

# How tokens are drawn: so that a few hundred of them tell this from other temperatures and no top-p.
SAMPLES, TEMPERATURE, TOP_P = 384, 0.7, 0.9
FEW = 48  # of them one by one, twice, and by other seeds
DRAWN = 40  # tokens that are drawn and then read again as a prompt


def local(it: Started, request: Mapping[str, Any]) -> Tensors:
    """What each layer adds when it is given the oracle's input, so that no error reaches the next one.

    `local|PROMPT.delta.N` (tokens, hidden), `local|PROMPT.routes.N` (tokens, chosen) and `local|PROMPT.scale`.
    Raises `UnaskableError` where the engine cannot be watched inside.
    """
    from safetensors.torch import load_file

    model, out = inside.model_of(it), {}
    golden, layers = load_file(request["golden"]), range(request["config"]["num_hidden_layers"])
    for name, prompt in request["prompts"].items():
        fed = inside.Fed(model, [golden[f"{name}.layer.{number}"] for number in layers])
        with inside.recording(it) as recorder, fed.feeding():
            it.ask([Asked(prompt, 1)])
        found, rows = recorder.joined(len(prompt)), len(prompt)
        for number in layers:
            out[f"local|{name}.delta.{number}"] = found[f"layer.{number}"] - fed.inputs(
                number, rows
            )
            if (routes := found.get(f"routes.{number}")) is not None:
                out[f"local|{name}.routes.{number}"] = routes
        out[f"local|{name}.scale"] = _numbers(1.0)
    return out


def replayed(it: Started, request: Mapping[str, Any]) -> Tensors:
    """One prompt, with the experts that its tokens went to, so that another model can go the same ways.

    `replayed|PROMPT.layer.N` (tokens, hidden), `.routes.N` (tokens, chosen) and `.logits` (tokens, vocab).
    Raises `UnaskableError` where the engine cannot be watched inside.
    """
    name, prompt = runs.medium(request)
    with inside.recording(it) as recorder:
        [answer] = it.ask([Asked(prompt, 1, "all")])
    runs.rinse(it, prompt)
    found = recorder.joined(len(prompt))
    if missing := [n for n in request["sparse_layers"] if f"routes.{n}" not in found]:
        raise UnaskableError(f"the routers of layers {missing} could not be watched")
    found = {"logits": answer.logits, **found}
    return {f"replayed|{name}.{k}": value for k, value in found.items() if k != "forwards"}


def late(it: Started, request: Mapping[str, Any]) -> Tensors:
    """Many more greedy tokens than elsewhere: `late.tokens` and `late.logits` of every step."""
    asked = request["late"]
    prompt = request["prompts"][asked["prompt"]]
    return runs.stepped(it, "late", Asked(prompt, asked["steps"], "steps"))


def scored(it: Started, request: Mapping[str, Any]) -> Tensors:
    """A prompt continued right after another one was read for its logits alone, as perplexity is asked for."""
    name, prompt = runs.medium(request)
    other = next(one for one in request["prompts"].values() if one is not prompt)
    it.read([other])
    found = runs.stepped(it, name, Asked(prompt, request["steps"], "steps"))
    runs.rinse(it, prompt)
    return found


def sampled(it: Started, request: Mapping[str, Any]) -> Tensors:
    """The token after a prompt drawn many times: `sampled|first`, `sampled|again` by the same seeds, `sampled|other`.

    `sampled|logits` (1, vocab) are those of a greedy request: engines may show what temperature and top-p have left.
    """
    prompt = next(iter(request["prompts"].values()))
    # In batches as they come about, logits differ by a last bit, which may draw another token.
    orderly = {
        key: _drawn(it, prompt, seed) for key, seed in (("first", 1), ("again", 1), ("other", 2))
    }
    rest = _finished(it, [_draw(prompt, 1, number) for number in range(FEW, SAMPLES)])
    orderly["first"] += [answer.tokens[0] for answer in rest]
    [greedy] = _finished(it, [Asked(prompt, 1, "steps")])
    found = {key: runs.integers(tokens) for key, tokens in orderly.items()} | {
        "logits": greedy.logits,
        "temperature": _numbers(TEMPERATURE),
        "top_p": _numbers(TOP_P),
    }
    return {f"sampled|{key}": value for key, value in found.items()}


def _draw(prompt: list[int], seed: int, number: int) -> Asked:
    return Asked(prompt, 1, "none", TEMPERATURE, TOP_P, 1000 * seed + number)


def _drawn(it: Started, prompt: list[int], seed: int) -> list[int]:
    """The token after a prompt by some seeds, one request after the other."""
    one_by_one = [_finished(it, [_draw(prompt, seed, number)]) for number in range(FEW)]
    return [answer.tokens[0] for [answer] in one_by_one]


def selfkl(it: Started, request: Mapping[str, Any]) -> Tensors:
    """Tokens drawn step by step, then read again as one prompt: their log-probabilities both ways.

    `selfkl|decode` and `selfkl|prefill`, (tokens,).
    """
    _, prompt = runs.medium(request)
    [drawn] = _finished(it, [Asked(prompt, DRAWN, "steps", temperature=1.0, seed=5)])
    [whole] = it.read([[*prompt, *drawn.tokens]])
    runs.rinse(it, prompt)
    read = whole[len(prompt) - 1 : -1]
    return {
        "selfkl|decode": _chosen(drawn.logits, drawn.tokens),
        "selfkl|prefill": _chosen(read, drawn.tokens),
    }


def passkey(it: Started, request: Mapping[str, Any]) -> Tensors:
    """By how much the right token leads where something is looked up: `passkeys.leads`; raises as `passkeys.asked`."""
    lookup = passkeys.asked(request)
    prompt, answer = lookup["prompt"], lookup["answer"]
    [found] = _finished(it, [Asked(prompt, len(answer), "all")])
    runs.rinse(it, prompt)
    steps = zip(found.logits[len(prompt) - 1 :], answer, strict=True)
    told: Tensors = passkeys.leads(
        lookup,
        # The row before a place is the one that predicts its token.
        lambda place, token: _lead(found.logits[place - 1], token),
        [_lead(row, token) for row, token in steps],
    )
    return told


def _finished(it: Started, asked: Sequence[Asked]) -> list[Answer]:
    """Answers of as many tokens as were asked for. Raises `RuntimeError` for one that broke off: that fails."""
    answers = it.ask(asked)
    for answer, one in zip(answers, asked, strict=True):
        if len(answer.tokens) < one.steps:
            raise RuntimeError(
                f"a text broke off: {len(answer.tokens)} of {one.steps} tokens that were asked for"
            )
    return answers


def _lead(row: Any, token: int) -> float:
    """The logit of a token less the best of the others."""
    others = row.clone()
    others[token] = float("-inf")
    return float(row[token] - others.max())


def _chosen(logits: Any, tokens: list[int]) -> Any:
    """The log-probability of each token by its row of raw logits."""
    picked = runs.integers(tokens)[:, None]
    return logits.double().log_softmax(-1).gather(1, picked).squeeze(1)


def _numbers(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float64)


# Those that look inside.
INSIDE = ("local", "replayed")
PROBES: dict[str, Probe] = {
    "local": local,
    "replayed": replayed,
    "late": late,
    "scored": scored,
    "sampled": sampled,
    "selfkl": selfkl,
    "passkey": passkey,
}
