# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The routing of configs that transformers saved, which name only what transformers itself reads."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.models import deepseek_v2


class Gate(torch.nn.Module):
    """Stands for GateLinear, whose weights take part in no choice here."""

    out_dtype = None


SMALL = {
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
}


@pytest.fixture
def routing(monkeypatch: pytest.MonkeyPatch):
    """What DeepseekV2MoE hands to its experts, without distributed groups and without kernels."""
    group = SimpleNamespace(device_group=SimpleNamespace(size=lambda: 1), rank_in_group=0)
    monkeypatch.setattr(deepseek_v2, "get_ep_group", lambda: group)
    monkeypatch.setattr(deepseek_v2, "get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setattr(deepseek_v2, "get_tensor_model_parallel_rank", lambda: 0)

    def of(config: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def experts(**arguments: Any) -> torch.nn.Module:
            seen.update(arguments)
            return torch.nn.Identity()

        monkeypatch.setattr(deepseek_v2, "FusedMoEFactory", experts)
        monkeypatch.setattr(deepseek_v2, "GateLinear", lambda *_, **__: Gate())
        monkeypatch.setattr(deepseek_v2, "DeepseekV2MLP", lambda **_: torch.nn.Identity())
        with set_current_vllm_config(VllmConfig()):
            deepseek_v2.DeepseekV2MoE(config, ParallelConfig())
        return seen

    return of


def test_a_saved_v3_config_selects_with_a_bias_over_sigmoid_scores(routing):
    seen = routing(DeepseekV3Config(**SMALL, n_group=2, topk_group=1))
    assert seen["e_score_correction_bias"] is not None
    assert seen["scoring_func"] == "sigmoid"
    assert (seen["num_expert_group"], seen["topk_group"]) == (2, 1)


def test_a_v3_config_that_names_its_routing_is_taken_by_its_word(routing):
    config = DeepseekV3Config(**SMALL, topk_method="greedy", scoring_func="softmax")
    seen = routing(config)
    assert seen["e_score_correction_bias"] is None
    assert seen["scoring_func"] == "softmax"


def test_a_saved_v2_config_without_groups_has_one(routing):
    config = DeepseekV2Config(**SMALL, topk_method="greedy", n_group=None, topk_group=None)
    seen = routing(config)
    assert (seen["num_expert_group"], seen["topk_group"]) == (1, 1)
