"""Runs that ask one thing each: layers by themselves, late tokens, sampling, decode against prefill."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import passkeys
from asking import UnaskableError

from . import dequantised, older, runs, synthetic
from .observe import positions_of, recording, recording_routes
from .plant import UNHEEDED, each, passed_through

Tensors = dict[str, Any]
Probe = Callable[[Any, Any, Mapping[str, Any]], Tensors]

# How tokens are drawn: so that a few hundred of them tell this from other temperatures and no top-p.
SAMPLES, TEMPERATURE, TOP_P = 384, 0.7, 0.9
FEW = 32  # that other seeds draw, to see that they draw others
DRAWN = 40  # tokens that are drawn and then read again as a prompt


def local(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """What each layer adds when it is given the oracle's input, so that no error reaches the next one.

    `local|PROMPT.delta.N` (tokens, hidden), `local|PROMPT.routes.N` (tokens, chosen) and
    `local|PROMPT.scale`, by which the engine multiplies the whole stream.
    """
    from safetensors.torch import load_file

    golden, out = load_file(request["golden"]), {}
    scale = _stream_scale(llm, model, request, golden)
    for name, prompt in request["prompts"].items():
        fed = Fed(model, {k: v for k, v in golden.items() if k.startswith(f"{name}.layer.")}, scale)
        with recording(model) as recorder, fed.feeding():
            runs.generate(llm, {name: prompt}, 1, prompt_logits=True)
        found = recorder.joined(request["sparse_layers"])
        for number in range(len(model.model.layers)):
            delta = found[f"layer.{number}"].float().cpu() - fed.inputs(number)
            out[f"local|{name}.delta.{number}"] = delta
            if (routes := found.get(f"routes.{number}")) is not None:
                out[f"local|{name}.routes.{number}"] = routes
        out[f"local|{name}.scale"] = _numbers(scale)
    return out


def _stream_scale(
    llm: Any, model: Any, request: Mapping[str, Any], golden: Mapping[str, Any]
) -> float:
    """In float16 engines divide the stream by the routed scaling, so that it does not overflow."""
    factor = float(request["config"]["routed_scaling_factor"])
    name, prompt = next(iter(request["prompts"].items()))
    with recording(model) as recorder:
        runs.generate(llm, {name: prompt}, 1, prompt_logits=True)
    found = recorder.joined([])["layer.0"].float().cpu()
    expected = golden[f"{name}.layer.0"][: len(found)]
    ratio = float((found * expected).sum() / expected.square().sum())
    return 1.0 / factor if abs(ratio * factor - 1.0) < abs(ratio - 1.0) else 1.0


class Fed:
    """The oracle's states of one prompt, given to every layer but the first as its input."""

    def __init__(self, model: Any, golden: Mapping[str, Any], scale: float) -> None:
        self.layers = list(model.model.layers)
        self.states = {int(key.rpartition(".")[2]): value for key, value in golden.items()}
        self.scale = scale
        self.given: dict[int, list[Any]] = {number: [] for number in range(len(self.layers))}

    def inputs(self, number: int) -> Any:
        """What a layer was given, (tokens, hidden), as the engine's dtype has it."""
        import torch

        return torch.cat(self.given[number])

    def feeding(self) -> AbstractContextManager[None]:
        """Replace the inputs of layers within the block."""
        return each(
            layer.register_forward_pre_hook(self._hook(number), with_kwargs=True)
            for number, layer in enumerate(self.layers)
        )

    def _hook(self, number: int) -> Callable[..., Any]:
        signature = inspect.signature(self.layers[number].forward)

        def hook(layer: Any, args: Any, kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            hidden, residual = bound.arguments["hidden_states"], bound.arguments.get("residual")
            if number:
                rows = positions_of(args, kwargs).to("cpu").long()
                state = self.states[number - 1][rows] * self.scale
                state = state.to(hidden.device, hidden.dtype)
                # The stream goes in as the residual; what the layer before would have added is in it.
                bound.arguments["residual"] = state
                bound.arguments["hidden_states"] = state.new_zeros(state.shape)
                whole = state
            else:
                whole = hidden if residual is None else hidden + residual
                whole = whole * self.scale
            # A copy: some engines add to the residual in place.
            self.given[number].append(whole.detach().float().cpu().clone())
            return bound.args, bound.kwargs

        return hook


def ladder(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """One prompt through the model cut after each layer: `ladder|PROMPT.cut.N` (tokens, vocab), its logits."""
    name, prompt = runs.medium(request)
    layers, out = list(model.model.layers), {}
    for number in range(len(layers)):
        runs.forget(llm)
        with each(passed_through(layer) for layer in layers[number + 1 :]):
            found = runs.generate(llm, {name: prompt}, 1, prompt_logits=True)
        out[f"ladder|{name}.cut.{number}"] = found[name]["logits"]
    return out


def replayed(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """One prompt, with the experts that its tokens went to, so that another model can go the same ways.

    `replayed|PROMPT.layer.N` (tokens, hidden), `.routes.N` (tokens, chosen) and `.logits` (tokens, vocab).
    """
    name, prompt = runs.medium(request)
    with recording(model) as recorder:
        result = runs.generate(llm, {name: prompt}, 1, prompt_logits=True)
    found = recorder.joined(request["sparse_layers"])
    if missing := [n for n in request["sparse_layers"] if f"routes.{n}" not in found]:
        raise UnaskableError(f"the routers of layers {missing} could not be watched")
    found = {"logits": result[name]["logits"], **found}
    return {f"replayed|{name}.{key}": value for key, value in found.items()}


def late(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """Many more greedy tokens than elsewhere: `late.tokens`, `late.logits` of every step, and `late.routes.N`."""
    asked = request["late"]
    prompts = {"late": request["prompts"][asked["prompt"]]}
    with recording_routes(model) as recorder:
        found = runs.generate(llm, prompts, asked["steps"], prompt_logits=False)
    routes = recorder.shared(request["sparse_layers"], runs.read(prompts, found))
    return routes | {f"late.{key}": value for key, value in found["late"].items()}


def sampled(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """The token after a prompt drawn many times: `sampled|first`, `sampled|again` by the same seeds, `sampled|other`.

    `sampled|logits` (1 or draws, vocab) are what the first ones were drawn from, before temperature and top-p.
    """
    import torch

    prompt = next(iter(request["prompts"].values()))
    shown = not older.needed()
    first, rows = _draw(llm, prompt, 1, SAMPLES, shown=shown)
    # Older engines show what temperature and top-p have left; a greedy request is not drawn by either.
    logits = rows if shown else _greedy(llm, prompt)
    found = {
        "first": first,
        "again": _draw(llm, prompt, 1, SAMPLES)[0],
        "other": _draw(llm, prompt, 2, FEW)[0],
        "logits": torch.stack(logits),
        "temperature": _numbers(TEMPERATURE),
        "top_p": _numbers(TOP_P),
    }
    return {f"sampled|{key}": value for key, value in found.items()}


def _draw(
    llm: Any, prompt: list[int], seed: int, count: int, *, shown: bool = False
) -> tuple[Any, list[Any]]:
    """Tokens (count,), and where asked for the logits that each was drawn from."""
    asked = {"logprobs": runs.every_token(llm), **runs.flat()} if shown else {}
    params = [
        _sampling(
            temperature=TEMPERATURE, top_p=TOP_P, max_tokens=1, seed=1000 * seed + number, **asked
        )
        for number in range(count)
    ]
    outputs = [one.outputs[0] for one in older.generated(llm, [prompt] * count, params)]
    tokens = runs.integers([one.token_ids[0] for one in outputs])
    return tokens, [next(runs.rows_of(one.logprobs)) for one in outputs if shown]


def _greedy(llm: Any, prompt: list[int]) -> list[Any]:
    asked = {"logprobs": runs.every_token(llm), **runs.flat()}
    found = older.generated(llm, [prompt], _sampling(temperature=0.0, max_tokens=1, **asked))
    return [*runs.rows_of(found[0].outputs[0].logprobs)]


def _sampling(**given: Any) -> Any:
    from vllm import SamplingParams

    # A planted fault is an engine that does not heed what it was asked.
    unheeded = UNHEEDED if given.get("temperature") else {}
    return SamplingParams(ignore_eos=True, detokenize=False, **{**given, **unheeded})


def selfkl(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """Tokens drawn step by step, then read again as one prompt: their log-probabilities both ways.

    `selfkl|decode` and `selfkl|prefill`, (tokens,).
    """
    _, prompt = runs.medium(request)
    every = runs.every_token(llm)
    first = _sampling(temperature=1.0, max_tokens=DRAWN, seed=5, logprobs=every, **runs.flat())
    drawn = older.generated(llm, [prompt], first)[0].outputs[0]
    tokens = list(drawn.token_ids)
    again = _sampling(temperature=0.0, max_tokens=1, prompt_logprobs=every, **runs.flat())
    whole = older.generated(llm, [prompt + tokens], again)[0]
    read = whole.prompt_logprobs[-len(tokens) :]
    return {
        "selfkl|decode": _chosen(drawn.logprobs, tokens),
        "selfkl|prefill": _chosen(read, tokens),
    }


def passkey(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """By how much the right token leads where something is looked up: `passkeys.leads`; raises as `passkeys.asked`."""
    lookup = passkeys.asked(request)
    few = _sampling(
        temperature=0.0, max_tokens=len(lookup["answer"]), logprobs=2, prompt_logprobs=2
    )
    found = older.generated(llm, [lookup["prompt"]], few)[0]
    steps = zip(found.outputs[0].logprobs, lookup["answer"], strict=True)
    told: Tensors = passkeys.leads(
        lookup,
        lambda place, token: _lead(found.prompt_logprobs[place], token),
        [_lead(row, token) for row, token in steps],
    )
    return told


def _lead(row: Mapping[int, Any], token: int) -> float:
    """The logit of a token less the best of the others; of one that is not among the best, the worst there is."""
    others = [one.logprob for other, one in row.items() if other != token]
    return row[token].logprob - max(others) if token in row else float("-inf")


def _chosen(rows: Any, tokens: list[int]) -> Any:
    """The log-probability of each token by its row of raw logits."""
    import torch

    logits = torch.stack([*runs.rows_of(rows)]).double().log_softmax(-1)
    return logits.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)


def turned(llm: Any, model: Any, request: Mapping[str, Any]) -> Tensors:
    """The engine's rotation at positions as far as its table goes.

    `turned|positions` (n,), `turned|given` and `turned|got` (n, 2, rotary dim): a query and a key.
    """
    import torch

    module = _rotary(model)
    end, width = module.cos_sin_cache.shape[0], request["config"]["qk_rope_head_dim"]
    steps = [position for k in range(18) for position in (2**k - 1, 2**k, 3 * 2**k)]
    positions = sorted({*range(16), *(p for p in steps if p < end), end // 3, end - 1})
    weight = next(model.parameters())
    draw = torch.Generator().manual_seed(3)
    given = torch.randn(len(positions), 2, width, generator=draw).to(weight.dtype)
    rows = torch.tensor(positions, device=weight.device)
    query, key = (given[:, part : part + 1].to(weight.device) for part in (0, 1))
    got = module(rows, query.clone(), key.clone())
    both = torch.cat([part.reshape(len(positions), 1, width) for part in got], 1)
    return {
        "turned|positions": rows.cpu(),
        "turned|given": given.float(),
        "turned|got": both.detach().float().cpu(),
    }


def _rotary(model: Any) -> Any:
    """The rotary module of attention; `UnaskableError` where an engine has none of that form."""
    for layer in model.model.layers:
        for name in ("rotary_emb", "mla_attn.rotary_emb"):
            found = layer.self_attn
            for part in name.split("."):
                found = getattr(found, part, None)
            if hasattr(found, "cos_sin_cache"):
                return found
    raise UnaskableError("no layer of this engine has a rotary module with a table")


def _numbers(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float64)


PROBES: dict[str, Probe] = {
    "local": local,
    "ladder": ladder,
    "replayed": replayed,
    "late": late,
    "routed": synthetic.routed,
    "turned": turned,
    "sampled": sampled,
    "selfkl": selfkl,
    "dequantised": dequantised.weights,
    "multiplied": dequantised.products,
    "passkey": passkey,
}
