"""DeepSeek's routers as transformers has them, and how far another's choice of experts is from theirs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

Chosen = tuple[torch.Tensor, torch.Tensor]


def reference_v2(logits: torch.Tensor, sizes: Mapping[str, int], factor: float) -> Chosen:
    """Weights and experts of each token by transformers' V2, from the logits themselves."""
    experts = logits.shape[-1]
    config = DeepseekV2Config(
        **sizes,
        hidden_size=experts,
        topk_method="group_limited_greedy",
        routed_scaling_factor=factor,
    )
    router = DeepseekV2TopkRouter(config)
    router.weight.data.copy_(torch.eye(experts))
    _, weights, chosen = router(logits.float())
    return weights.detach(), chosen


def reference_v3(
    logits: torch.Tensor, bias: torch.Tensor, sizes: Mapping[str, int], factor: float
) -> Chosen:
    """Weights and experts of each token by transformers' V3, from the logits themselves."""
    experts = logits.shape[-1]
    small = {"moe_intermediate_size": 8, "n_shared_experts": 1}
    config = DeepseekV3Config(
        **sizes, **small, hidden_size=experts, routed_scaling_factor=factor, norm_topk_prob=True
    )
    router = v3.DeepseekV3TopkRouter(config)
    router.weight.data.copy_(torch.eye(experts))
    router.e_score_correction_bias.copy_(bias)
    _, weights, chosen = router(logits.float())
    return weights.detach(), chosen


def compared(got: Chosen, wanted: Chosen) -> str:
    """How many tokens get other experts, and how far the weights of the others are off, relatively."""
    (weights, chosen), (right, best) = got, wanted
    same = (chosen.sort(-1)[0] == best.sort(-1)[0]).all(-1)
    other = round(100 * (1 - same.float().mean().item()))
    if not same.any():
        return "other experts for 100 % of tokens"
    ours = weights.float().gather(-1, chosen.sort(-1)[1])[same]
    theirs = right.gather(-1, best.sort(-1)[1])[same]
    off = ((ours - theirs).abs() / theirs).max().item()
    if other == 0 and off < 1e-4:
        return "as in transformers"
    return f"other experts for {other} % of tokens, weights off by up to {round(100 * off)} %"
