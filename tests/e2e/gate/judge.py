"""Hold compiled gates against PyTorch: 1,000 random tokens of V3's router, and hard ones.

    python judge.py HARNESS GATE...

Prints JSON: of each gate, how many tokens of each case went elsewhere or with other weights. The
reference is DeepSeek-V3's published rule, of equal scores the first; `transformers` counts how often
that library's own router chooses otherwise where its rule (zero for masked experts) means the same.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

SCALE = 2.5


@dataclass(frozen=True, kw_only=True)
class Case:
    """Scores [tokens, experts] and biases [experts], and how many groups and experts are taken."""

    name: str
    logits: torch.Tensor
    bias: torch.Tensor
    groups: int = 8
    kept: int = 4
    top: int = 8
    threads: int = 1

    @property
    def scores(self) -> torch.Tensor:
        return self.logits.sigmoid()


def cases() -> Iterator[Case]:
    """Random ones, then those that a wrong gate gets right by luck elsewhere."""
    torch.manual_seed(0)
    logits, bias = torch.randn(1000, 256), torch.randn(256) * 0.1
    yield Case(name="v3", logits=logits, bias=bias)
    yield Case(name="v3-threads", logits=logits[:60], bias=bias, threads=8)
    yield Case(name="negative", logits=logits - 1, bias=bias - 1.5)
    yield Case(name="strong-bias", logits=logits, bias=bias * 20)
    # Scores in steps of 1/8, biases of 1/4: experts and groups are equal everywhere.
    steps = (torch.rand(500, 256) * 8).floor() / 8
    yield Case(name="ties", logits=steps.clamp(0.05, 0.95).logit(), bias=(bias * 4).round() / 4)
    yield Case(name="all-equal", logits=torch.zeros(3, 256), bias=torch.zeros(256))
    broken = logits[:50].clone()
    broken[:, ::7] = float("nan")
    endless = bias.masked_fill(torch.arange(256) % 11 == 0, float("inf"))
    yield Case(name="no-number", logits=broken, bias=endless)
    yield Case(name="small", logits=logits[:, :16], bias=bias[:16], groups=4, kept=2, top=4)
    yield Case(name="pairs", logits=logits[:, :16], bias=bias[:16], groups=8, kept=3, top=6)
    yield Case(name="one-group", logits=logits[:200], bias=bias, groups=1, kept=1)
    yield Case(name="all-groups", logits=logits[:200], bias=bias, kept=8)


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts, in order, and weights of each token: [tokens, top] each."""
    choice = case.scores + case.bias
    choice = choice.where(choice.isfinite(), torch.tensor(float("-inf")))
    groups = choice.unflatten(1, (case.groups, -1))
    best = groups.topk(2, dim=-1)[0].sum(-1)
    order = best.sort(dim=-1, descending=True, stable=True).indices[:, : case.kept]
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, order, True)
    masked = groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    index = masked.sort(dim=-1, descending=True, stable=True).indices[:, : case.top]
    weight = case.scores.gather(1, index)
    return index, weight / weight.sum(-1, keepdim=True) * SCALE


def gate(harness: ctypes.CDLL, path: str, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """What a compiled gate chooses."""
    mask = ctypes.cast(ctypes.CDLL(path).mask, ctypes.c_void_p)
    tokens, experts = case.logits.shape
    index = torch.zeros(tokens, case.top, dtype=torch.int32)
    weight = torch.zeros(tokens, case.top)
    given = [case.scores.contiguous(), case.bias.contiguous(), index, weight]
    at = [ctypes.c_void_p(each.data_ptr()) for each in given]
    sizes = [tokens, experts, case.groups, case.kept, case.top]
    harness.route(mask, *at[:2], *sizes, ctypes.c_float(SCALE), case.threads, *at[2:])
    return index.long(), weight


def wrong(
    found: tuple[torch.Tensor, torch.Tensor], meant: tuple[torch.Tensor, torch.Tensor]
) -> int:
    """How many tokens have other experts, or weights that are off by more than rounding."""
    elsewhere = (found[0] != meant[0]).any(1)
    off = ((found[1] - meant[1]).abs() > 1e-6 * SCALE).any(1)
    return int((elsewhere | off).sum())


def misrouted(
    masks: torch.Tensor, scales: torch.Tensor, case: Case
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token by a kernel's masks, and which tokens are routed worse or weighed otherwise."""
    found = torch.stack([(masks == k).long().argmax(0) for k in range(case.top)], 1)
    meant, weight = reference(case)
    choice = case.scores + case.bias
    # Equal within the rounding of expf: another expert of the same choice is as right.
    apart = (choice.gather(1, found) - choice.gather(1, meant)).abs().nan_to_num(nan=1.0)
    bad = (apart > 1e-6).any(1) | ((masks >= 0).sum(0) != case.top)
    same = (found == meant).all(1)
    return found, bad | same & ((scales.T - weight).abs() > 1e-5).any(1)


def by_transformers(case: Case) -> int:
    """How many tokens the published router sends elsewhere than the reference."""
    config = DeepseekV3Config(
        hidden_size=256, n_routed_experts=256, num_experts_per_tok=8, n_group=8, topk_group=4,
        norm_topk_prob=True, routed_scaling_factor=SCALE,
    )  # fmt: skip
    router = DeepseekV3TopkRouter(config)
    # With the unit matrix as weight, its input is the logits.
    router.weight.data = torch.eye(256)
    router.e_score_correction_bias.copy_(case.bias)
    said = router(case.logits)
    index = next(each for each in said if not each.is_floating_point())
    meant = reference(case)[0]
    return int((index.sort(-1).values != meant.sort(-1).values).any(1).sum())


def main() -> None:
    """Judge every gate."""
    made = [(case, reference(case)) for case in cases()]
    harness = ctypes.CDLL(sys.argv[1])
    found = {
        path: {case.name: wrong(gate(harness, path, case), meant) for case, meant in made}
        for path in sys.argv[2:]
    }
    print(json.dumps({"found": found, "transformers": by_transformers(made[0][0])}))


if __name__ == "__main__":
    main()
