"""Measure an engine's results against the golden ones: numbers only, no verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import each, following, metrics, placing, probing, rules
from .twin import below

Tensors = Mapping[str, Tensor]
LATE = "late"  # the text that goes on for long, and would part from the oracle's before its end


def measure(
    golden: Path,
    checkpoint: Path,
    result: Path,
    loaded: Path,
    band: float,
    times: float,
    scale: float,
    dtype: str,
    stored: Path | None = None,
) -> dict[str, Any]:
    """All that the checks judge, as JSON values; `band` and `scale` are those of `placing.compare`, `times` of a model.

    `runs` has one entry for `alone`, `together`, `again` and each planted fault, `probes` the numbers of
    each run that asked one thing (see `probing`); `weights` compares the parameters read back with the
    checkpoint's, of a quantised one with what is `stored`; `sane` is the oracle against its controls.
    The parameters lie in `loaded`, which is the `result` itself or that of an earlier run of the same start.
    """
    from safetensors.torch import load_file

    expected, found = load_file(golden), load_file(result)
    read = below(found if loaded == result else load_file(loaded), "weights/")
    known = _grouped(expected)
    stretch = scale if dtype == "float16" else 1.0
    sane = {key: float(value) for key, value in below(expected, "sane.").items()}
    # Whatever they are written in: what they are is held by float32.
    tensors = {name: value.float() for name, value in load_file(checkpoint).items()}
    given = load_file(stored) if stored else tensors
    config = json.loads(checkpoint.with_name("oracle.json").read_text())
    compared = weights(_tied(given, read, config), read, dtype)
    held = _held(tensors, read, dtype)
    model = probing.Model(
        config=config, weights=tensors, held=held, dtype=dtype, stretch=stretch, times=times
    )
    runs, probes = {}, {}
    alone = below(found, "alone/")
    for name in _runs(found):
        own = following.completed(below(found, name), alone)
        runs[name] = run(known, own, band, scale, model)
        for prompt, measures in runs[name].items():
            found_here = known[prompt], below(own, f"{prompt}."), model
            followed = _followed(prompt, *found_here)
            measures["each"]["followed"] = followed.tokens if dtype != "float32" else []
            measures["experts"] = followed.experts
            own_way = prompt == LATE or measures["agreed_steps"] < measures["steps"]
            if own_way and not measures["each"]["followed"] and dtype != "float32":
                measures["each"]["by_text"] = following.by_text(*found_here)
        probes[name] = probing.measure(own, known, model)
    return {"runs": runs, "probes": probes, "weights": compared, "sane": sane}


def _followed(
    prompt: str, expected: Tensors, found: Tensors, model: probing.Model
) -> following.Followed:
    """`following.measure` in a dtype whose rounding turns routers.

    In float32 the oracle's own text says as much, but for the long one, whose experts it does not keep.
    """
    if model.dtype == "float32" and prompt != LATE:
        return following.NOT_FOLLOWED
    return following.measure(expected, found, model)


def _tied(given: Tensors, read: Tensors, config: Mapping[str, Any]) -> Tensors:
    """The weights of a checkpoint; of a tied one the embedding is the output's, where an engine has one apart."""
    if not config.get("tie_word_embeddings") or "lm_head.weight" not in read:
        return given
    return {"lm_head.weight": given["model.embed_tokens.weight"], **given}


def _held(weights: Tensors, found: Tensors, dtype: str) -> dict[str, Tensor]:
    """The weights as the engine holds them: rounded to its dtype, where it keeps them in that.

    Of an engine that shows none, all but a router's bias are taken for what the dtype has.
    """
    if not found:
        return {
            n: v if n.endswith("_bias") else v.to(getattr(torch, dtype)) for n, v in weights.items()
        }
    return {n: _in(v, found[n], dtype) if n in found else v for n, v in weights.items()}


def _runs(found: Iterable[str]) -> list[str]:
    prefixes = [name.split("/", 1)[0] + "/" for name in found if not name.startswith("fault/")]
    faults = [name.split(":", 1)[0] + ":" for name in found if name.startswith("fault/")]
    return sorted({*prefixes, *faults} - {"weights/"})


def run(
    expected: Mapping[str, Tensors],
    found: Tensors,
    band: float,
    scale: float,
    model: probing.Model | None = None,
) -> dict[str, Any]:
    """One run, for each prompt: logits, layers, routes, operations, greedy tokens, scheduling.

    Operations are held against the oracle's; in less than float32, for which there is a `model`, against what that
    makes of the engine's own input to each.
    """
    narrow = model if model is not None and model.dtype != "float32" else None
    stretch = narrow.stretch if narrow else 1.0
    prompts = sorted(name.removesuffix(".tokens") for name in found if name.endswith(".tokens"))
    out = {}
    for name in prompts:
        own = metrics.restored(expected[name], below(found, f"{name}."), stretch)
        out[name] = measures = _prompt(expected[name], own)
        shared = measures["tokens"] + measures["agreed_steps"]
        measures["rules"] = rules.judge(expected[name], own)
        measures["places"] = placing.compare(expected[name], own, shared, band, scale, narrow)
    return out


def _grouped(expected: Tensors) -> dict[str, dict[str, Tensor]]:
    """The golden tensors of each prompt, by its name."""
    out: dict[str, dict[str, Tensor]] = {}
    for name, value in expected.items():
        prompt, _, rest = name.partition(".")
        out.setdefault(prompt, {})[rest] = value
    return out


def _prompt(expected: Tensors, found: Tensors) -> dict[str, Any]:
    steps = found["tokens"].shape[0]
    length = expected["ids"].shape[0] - steps
    # Row i predicts token i+1; the last golden row predicts a token that nobody generated.
    wanted = expected["logits"][:-1][-found["logits"].shape[0] :]
    same = _agreed_steps(expected["ids"][length:], found["tokens"])
    # Past the first step that chose another token, the two continue different texts.
    valid = wanted.shape[0] - steps + min(same + 1, steps)
    logits, golden = found["logits"][:valid], wanted[:valid]
    prefill = wanted.shape[0] - steps
    missed = metrics.margins_missed(logits, golden)
    return {
        "tokens": length,
        "steps": steps,
        "agreed_steps": same,
        "prefill_rel": metrics.relative(logits[:prefill], golden[:prefill]) if prefill else None,
        "decode_rel": metrics.relative(logits[prefill:], golden[prefill:]),
        "prefill_logprob": metrics.worst_logprob(logits[:prefill], golden[:prefill]),
        "decode_logprob": metrics.worst_logprob(logits[prefill + 1 :], golden[prefill + 1 :]),
        "first_step_logprob": metrics.worst_logprob(
            logits[prefill : prefill + 1], golden[prefill : prefill + 1]
        ),
        "argmax_missed": len(missed),
        "worst_missed_margin": float(missed.max()) if len(missed) else 0.0,
        "unchosen": max(metrics.unchosen(found["logits"][-steps:], found["tokens"]).tolist()),
        "divergence": metrics.divergence(logits, golden),
        "best": metrics.best(logits, golden),
        "repeated": metrics.repeated(found["tokens"].tolist()),
        "expected_repeated": metrics.repeated(expected["ids"][length:].tolist()),
        "logprob_errors": metrics.histogram(logits, golden),
        "each": {"read": prefill} | each.measure(expected, found, logits, golden, length + same),
        "finite": bool(found["logits"].isfinite().all()),
        "layers": _layers(expected, found, length + same),
        "routes": _routes(expected, found, length + same),
        "choices": _choices(expected, found, length + same),
        "forwards": found["forwards"].tolist() if "forwards" in found else [],
        "cached": int(found["cached"]) if "cached" in found else 0,
        "told_cached": "cached" in found,
    }


def _agreed_steps(expected: Tensor, found: Tensor) -> int:
    differing = (expected != found).nonzero()
    return int(differing[0]) if len(differing) else int(found.shape[0])


def _choices(expected: Tensors, found: Tensors, tokens: int) -> list[list[Any]]:
    """[layer, worst missed score, tokens whose keys differ, tokens]; empty without an indexer."""
    rows = min(tokens, expected["ids"].shape[0] - 1)
    out = []
    for name, layer in _numbered(found, "chosen"):
        scores = expected[f"scores.{layer}"][:rows, :rows]
        missed = metrics.choices_missed(found[name][:rows], scores)
        out.append([layer, float(missed.max()), int((missed > 0).sum()), rows])
    return out


def _numbered(found: Tensors, kind: str) -> list[tuple[str, int]]:
    """Names `KIND.N` with their numbers, in the order of these."""
    names = [name for name in found if name.startswith(f"{kind}.")]
    return sorted(((name, int(name.split(".")[1])) for name in names), key=lambda one: one[1])


def _layers(expected: Tensors, found: Tensors, tokens: int) -> list[list[Any]]:
    """[name, relative difference] in the model's order, over the tokens that both texts share."""
    names = [name for name, _ in _numbered(found, "layer")]
    names += ["final"] if "final" in found else []
    rows = min(tokens, expected["ids"].shape[0] - 1)
    return [[n, metrics.relative(found[n][:rows], expected[n][:rows])] for n in names]


def _routes(expected: Tensors, found: Tensors, tokens: int) -> list[list[Any]]:
    """[layer, tokens whose experts differ, tokens]; empty when no router was seen."""
    rows = min(tokens, expected["ids"].shape[0] - 1)
    return [
        [layer, metrics.routes_differing(found[name][:rows], expected[name][:rows]), rows]
        for name, layer in _numbered(found, "routes")
        if name in expected
    ]


def weights(expected: Tensors, found: Tensors, dtype: str) -> dict[str, Any]:
    """Names on one side only, names with gaps (NaN), and names whose values are not bit-equal.

    A parameter may have the checkpoint's dtype, or the one that the engine computes in, rounded once.
    """
    shared = sorted(expected.keys() & found.keys())
    return {
        "missing": sorted(
            n for n in expected.keys() - found.keys() if not _in_order(n, expected[n])
        ),
        "extra": sorted(found.keys() - expected.keys()),
        "unfilled": sorted(n for n, v in found.items() if bool(_bits(v).isnan().any())),
        "differing": [
            n for n in shared if not _bit_equal(_in(expected[n], found[n], dtype), found[n])
        ],
        "compared": len(shared),
    }


def _in_order(name: str, value: Tensor) -> bool:
    """Whether a tensor says only that inputs are in groups in their own order, which needs no saying."""
    return name.endswith(".g_idx") and bool((value.diff() >= 0).all())


def _in(expected: Tensor, found: Tensor, dtype: str) -> Tensor:
    return expected.to(found.dtype) if str(found.dtype) == f"torch.{dtype}" else expected


def _bit_equal(x: Tensor, y: Tensor) -> bool:
    alike = x.shape == y.shape and x.dtype == y.dtype
    return alike and bool((_bits(x) == _bits(y)).all())


def _bits(x: Tensor) -> Tensor:
    """A tensor that can be compared, as PyTorch cannot compare floats of eight bits."""
    return x.float() if x.itemsize == 1 else x
