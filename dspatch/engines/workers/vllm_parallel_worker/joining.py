"""What several processes said and hold, against one: log-probabilities, and weights joined bit by bit."""

from __future__ import annotations

import itertools
import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

PACKED = 16  # rows that the CPU's expert weights interleave


def compare(one: Path, many: Path) -> dict[str, Any]:
    """Measures of two runs' folders; `blind` are weights whose shards could be exchanged unseen.

    `spoiled`: what `said` gives where a sum over the processes was left out; nothing where none could be.
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
    right, got = (json.loads((folder / "said.json").read_text()) for folder in (one, many))
    wrong = many / "spoiled.json"
    return {
        **said(right, got),
        "spoiled": said(right, json.loads(wrong.read_text())) if wrong.is_file() else None,
        "processes": len(shards),
        "weights": len(whole),
        "split": len(split),
        "lost": [name for name, told in how.items() if told == "not"],
        "blind": blind,
    }


def said(one: list[dict[str, Any]], many: list[dict[str, Any]]) -> dict[str, Any]:
    """Texts that are equal, and the differences of log-probabilities, in nats: the worst, and a typical one.

    Of each generated token the largest, of each text the median of these, of all texts the median again.

    Compared as far as the texts are equal: what comes after another token answers another question.
    """
    off: list[float] = []
    middle: list[float] = []
    equal = 0
    for before, after in zip(one, many, strict=True):
        pairs = zip(before["tokens"], after["tokens"], strict=True)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        equal += same == len(before["tokens"])
        prompt = len(before["logprobs"]) - len(before["tokens"])
        shown = prompt + same + 1
        rows = [
            # None of the likeliest tokens in common is as far apart as can be told.
            [_number(right[token] - got[token]) for token in right.keys() & got.keys()]
            or [math.inf]
            for right, got in zip(
                before["logprobs"][:shown], after["logprobs"][:shown], strict=True
            )
        ]
        off += itertools.chain.from_iterable(rows)
        middle.append(_middle(list(map(max, rows[prompt:]))))
    worst = max(off, default=0.0)
    # What is no number is wrong wherever it stands.
    found = {"worst": worst, "typical": _middle(middle) if worst < math.inf else worst}
    return {"texts": len(one), "equal": equal, "compared": len(off), **found}


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
