"""Golden results of a checkpoint: transformers in float32, eager attention."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import metrics, places, twin


def golden(
    folder: Path, prompts: dict[str, list[int]], steps: int, late: dict[str, Any]
) -> dict[str, Tensor]:
    """Results for each prompt and its greedy continuation of `steps` tokens.

    Under `late` stand `ids`, `logits` and `rows` (none) of one `prompt` that goes on for many `steps`.

    Keys, each below the prompt's name: `ids` (tokens,), `logits` (tokens, vocab), `layer.N` and
    `final` (tokens, hidden), `routes.N` (tokens, chosen experts, sorted); and `sane.sdpa` and
    `sane.twin`, the relative difference of the oracle from its two controls. Of a model with an
    indexer also `chosen.N` (tokens, most keys; sorted, -1 for none) and, from the second model,
    `scores.N` (tokens, tokens), by which `sane.choices` judges the oracle's own choices. What it
    computes inside is under `place.OPERATION` (see `places`), at the positions that `rows` names.
    """
    model = load(folder, "eager")
    config = json.loads((folder / "oracle.json").read_text())
    out: dict[str, Tensor] = {}
    for name, prompt in prompts.items():
        observed = _observe(model, config, prompt, steps)
        out |= {f"{name}.{key}": value for key, value in observed.items()}
    return out | _late(model, prompts, late) | _sanity(folder, config, out, prompts)


def _late(model: Any, prompts: dict[str, list[int]], late: dict[str, Any]) -> dict[str, Tensor]:
    if not late:
        return {}
    ids = _continue(model, prompts[late["prompt"]], late["steps"])
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].contiguous()
    none = torch.empty(0, dtype=torch.int64)
    return {"late.ids": torch.tensor(ids), "late.logits": logits, "late.rows": none}


def load(folder: Path, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model of a checkpoint, ready to run; `RuntimeError` where it did not load whole."""
    from transformers import AutoModelForCausalLM

    # The grouped products of experts know no float64.
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
        **experts,
    )
    wrong = {key: sorted(map(str, names)) for key, names in report.items() if names}
    wrong = {key: kept for key, names in wrong.items() if (kept := _kept(model, names))}
    if wrong:
        raise RuntimeError(f"transformers did not load {folder} whole: {wrong}")
    # Steps are counted; no token may end a text early.
    model.generation_config.eos_token_id = None
    return model.eval()


def _kept(model: Any, names: list[str]) -> list[str]:
    """Names without those of layers for multi-token prediction, which are no part of the model."""
    count = model.config.num_hidden_layers
    return [
        name
        for name in names
        if not name.startswith(tuple(f"model.layers.{count + n}." for n in (0, 1)))
    ]


def _continue(model: Any, prompt: list[int], steps: int) -> list[int]:
    with torch.no_grad():
        text = model.generate(
            torch.tensor([prompt]), max_new_tokens=steps, min_new_tokens=steps, do_sample=False
        )
    ids: list[int] = text[0].tolist()
    return ids


def _observe(
    model: Any, config: dict[str, Any], prompt: list[int], steps: int
) -> dict[str, Tensor]:
    ids = _continue(model, prompt, steps)
    with _hooks(model) as seen, places.watched(model, config) as inside, torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].contiguous()
    # The continuation came through transformers' cache code; this pass did not, and must agree.
    chosen = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    if chosen != ids[len(prompt) :]:
        raise RuntimeError("transformers' cached and uncached passes choose different tokens")
    rows = torch.tensor(places.rows(len(prompt), len(ids)))
    kept = {f"place.{name}": value[rows].clone() for name, value in inside.items()}
    return {"ids": torch.tensor(ids), "logits": logits, "rows": rows, **seen, **kept}


@contextmanager
def _hooks(model: Any) -> Iterator[dict[str, Tensor]]:
    seen: dict[str, Tensor] = {}

    def hidden(name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            seen[name] = value.reshape(-1, value.shape[-1]).clone()

        return hook

    def chosen(name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            seen[name] = output[2].sort(-1)[0].to(torch.int32)

        return hook

    def keys(name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            seen[name] = _causal(output[0])

        return hook

    handles = [model.model.norm.register_forward_hook(hidden("final"))]
    for number, layer in enumerate(model.model.layers):
        handles.append(layer.register_forward_hook(hidden(f"layer.{number}")))
        if hasattr(layer.self_attn, "indexer"):
            handles.append(layer.self_attn.indexer.register_forward_hook(keys(f"chosen.{number}")))
        if hasattr(layer.mlp, "gate"):
            handles.append(layer.mlp.gate.register_forward_hook(chosen(f"routes.{number}")))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _causal(chosen: Tensor) -> Tensor:
    """Chosen keys (tokens, most), sorted; transformers fills up with later keys, and masks them."""
    later = chosen > torch.arange(len(chosen))[:, None]
    return chosen.to(torch.int32).masked_fill(later, -1).sort(-1)[0]


def _sanity(
    folder: Path, config: dict[str, Any], out: dict[str, Tensor], prompts: Iterable[str]
) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    weights, other = load_file(folder / "model.safetensors"), load(folder, "sdpa")
    worst, found = {"sane.sdpa": 0.0, "sane.twin": 0.0, "sane.choices": 0.0}, {}
    for name in prompts:
        ids, logits = out[f"{name}.ids"].tolist(), out[f"{name}.logits"]
        with torch.no_grad():
            run = twin.run(config, weights, ids)
            second = {
                "sane.sdpa": other(torch.tensor([ids]), use_cache=False).logits[0],
                "sane.twin": run.logits,
            }
        for key, value in second.items():
            worst[key] = max(worst[key], metrics.relative(value, logits))
        for layer, scores in enumerate(run.scores):
            missed = metrics.choices_missed(out[f"{name}.chosen.{layer}"], scores)
            worst["sane.choices"] = max(worst["sane.choices"], float(missed.max()))
            found[f"{name}.scores.{layer}"] = scores.float()
    controls = {key: torch.tensor(value, dtype=torch.float64) for key, value in worst.items()}
    return found | controls
