"""By how much a router's choice of experts falls short of the best one, groups counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from . import twin

Config = Mapping[str, Any]


def missed(config: Config, raw: Tensor, bias: Tensor, chosen: Tensor) -> Tensor:
    """By how much each token's router prefers what it did not choose to what it did, (tokens,).

    `raw` (tokens, experts) are its logits, `chosen` (tokens, most) the numbers of experts. 0 where these are the
    best; else the least by which scores, and the sums that groups are chosen by, would have to change for them
    to be. inf where there are fewer than most, or more groups than a router may choose.
    """
    choice = twin.preferred(config, twin.scored(config, raw), bias)
    taken = torch.zeros_like(choice, dtype=torch.bool).scatter(1, chosen.long(), True)
    worst = choice.masked_fill(~taken, float("inf")).amin(-1)
    least = torch.full_like(worst, float("inf"))
    # Of groups that gave no expert nobody sees whether they were chosen: the best that may have been count.
    for within, lost in _allowed(config, choice):
        best = choice.masked_fill(taken | ~within, float("-inf")).amax(-1)
        own = (best - worst).clamp_min(0.0).maximum(lost)
        least = least.minimum(own.masked_fill((taken & ~within).any(-1), float("inf")))
    few = taken.sum(-1) != config["num_experts_per_tok"]
    return least.nan_to_num(nan=float("inf"), posinf=float("inf")).masked_fill(few, float("inf"))


def _allowed(config: Config, choice: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The experts (experts,) of each set of groups that may be chosen, and by how much groups outside are better."""
    if config["topk_method"] == "greedy":
        yield choice.new_ones(choice.shape[1], dtype=torch.bool), choice.new_zeros(len(choice))
        return
    grouped, strength = twin.strengths(config, choice)
    for kept in combinations(range(config["n_group"]), config["topk_group"]):
        inside = torch.zeros(config["n_group"], dtype=torch.bool)
        inside[list(kept)] = True
        best = strength.masked_fill(inside, float("-inf")).amax(-1)
        lost = (best - strength[:, inside].amin(-1)).clamp_min(0.0)
        yield inside.repeat_interleave(grouped.shape[-1]), lost
