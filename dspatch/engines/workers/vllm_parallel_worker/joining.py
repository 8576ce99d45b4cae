"""What several processes said and hold, against one: log-probabilities, and weights joined bit by bit."""

from __future__ import annotations

import itertools
import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

SAID, SPOILED = "said.json", "spoiled.json"  # texts and their log-probabilities, in a run's folder
PACKED = 16  # rows that the CPU's expert weights interleave


def compare(one: Path, many: Path) -> dict[str, Any]:
    """Measures of two runs' folders; `blind` are weights whose shards could be exchanged unseen.

    `equal` is how many of the `texts` one process writes as well. `spoiled`: what `apart` gives where a sum
    over the processes was left out; nothing where none could be.
    """
    load = import_module("safetensors.torch").load_file
    whole = {name: each for name, each in load(one / "0.safetensors").items() if each.numel()}
    ranks = sorted(many.glob("*.safetensors"), key=lambda path: int(path.stem))
    shards = [load(path) for path in ranks]
    how = {name: joined([each[name] for each in shards], whole[name]) for name in whole}
    split = [name for name, told in how.items() if told.startswith("split")]
    blind = [
        name
        for name in split
        if joined([each[name] for each in reversed(shards)], whole[name]) != "not"
    ]
    own, texts = (_told(folder / SAID) for folder in (one, many))
    return {
        **apart(_told(one / read(SAID)), texts),
        "texts": len(texts),
        "equal": sum(a["tokens"] == b["tokens"] for a, b in zip(own, texts, strict=True)),
        "spoiled": (
            apart(_told(one / read(SPOILED)), _told(many / SPOILED))
            if (many / SPOILED).is_file()
            else None
        ),
        "processes": len(shards),
        "weights": len(whole),
        "split": len(split),
        "lost": [name for name, told in how.items() if told == "not"],
        "blind": blind,
    }


def read(name: str) -> str:
    """The file that holds how one process reads the texts of another file."""
    return f"read-{name}"


def apart(right: list[dict[str, Any]], texts: list[dict[str, Any]]) -> dict[str, Any]:
    """How far log-probabilities are from those of one process that reads the same texts, in nats.

    `worst` of all `compared`; `typical`: of each generated token the largest, of each text the median of these, of
    all texts the median again. What one process would have written itself plays no part, so that no text parts.
    """
    off: list[float] = []
    middle: list[float] = []
    for before, after in zip(right, texts, strict=True):
        rows = [
            # None of the likeliest tokens in common is as far apart as can be told.
            [_number(one[token] - got[token]) for token in one.keys() & got.keys()] or [math.inf]
            for one, got in zip(before["logprobs"], after["logprobs"], strict=True)
        ]
        off += itertools.chain.from_iterable(rows)
        middle.append(_middle(list(map(max, rows[-len(after["tokens"]) :]))))
    worst = max(off, default=0.0)
    # What is no number is wrong wherever it stands.
    found = {"worst": worst, "typical": _middle(middle) if worst < math.inf else worst}
    return {"compared": len(off), **found}


def _told(path: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(path.read_text())
    return told


def _number(difference: float) -> float:
    # max() keeps a number that comes before one that is none.
    return math.inf if math.isnan(difference) else abs(difference)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def joined(shards: list[Any], whole: Any) -> str:
    """How shards make up a weight, bit by bit: `whole`, `split DIM PARTS`, or `not`.

    Parts are those of a merged weight, each of which is split by itself.
    """
    torch = import_module("torch")
    if all(torch.equal(each, whole) for each in shards):
        return "whole"
    for dim, parts in itertools.product(range(whole.dim()), (1, 2)):
        if any(each.dim() <= dim or each.shape[dim] % parts for each in shards):
            continue
        cut = [each.chunk(parts, dim) for each in shards]
        order = [each[part] for part in range(parts) for each in cut]
        if torch.equal(torch.cat(order, dim), whole):
            return f"split {dim} {parts}"
    if whole.dim() == 3 and all(each.dim() == 3 for each in shards):
        return _joined_packed(shards, whole)
    return "not"


def _joined_packed(shards: list[Any], whole: Any) -> str:
    """As `joined`, for experts whose columns are split after PACKED rows were interleaved."""
    torch = import_module("torch")
    if any(each.shape[1] != whole.shape[1] or each.shape[1] % PACKED for each in shards):
        return "not"
    rows = [each.reshape(len(each), each.shape[1] // PACKED, -1, PACKED) for each in shards]
    same = torch.equal(torch.cat(rows, 2).reshape(whole.shape), whole)
    return f"split 2 in {PACKED}" if same else "not"
