"""The routing that the series reads from configs, beside transformers' own config classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.templatekit import rendered

V2 = {"topk_method": "greedy", "n_group": None, "topk_group": None}
V3 = {"n_group": 8, "topk_group": 4}


class DeepseekV2Config(SimpleNamespace):
    """Stands for transformers' class of that name."""


class DeepseekV3Config(SimpleNamespace):
    """Stands for transformers' class of that name."""


@pytest.fixture
def routing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`MoERouting.from_config`, rendered."""
    transformers = ModuleType("transformers")
    for cls in (DeepseekV2Config, DeepseekV3Config):
        setattr(transformers, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    module = rendered(
        "models/deepseek_routing", "deepseek_routing", moe_routing_is_read_outright=True
    )
    yield module.MoERouting.from_config
    del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        pytest.param(DeepseekV3Config(**V3), (True, "sigmoid", 8, 4), id="V3, saved"),
        pytest.param(
            DeepseekV3Config(**V3, topk_method="noaux_tc", scoring_func="sigmoid"),
            (True, "sigmoid", 8, 4),
            id="V3, published",
        ),
        pytest.param(
            DeepseekV3Config(**V3, topk_method="noaux_tc", scoring_func="softmax"),
            (True, "softmax", 8, 4),
            id="what a config says wins",
        ),
        pytest.param(
            DeepseekV3Config(**V3, topk_method=None, scoring_func="softmax"),
            (False, "softmax", 8, 4),
            id="null is said too",
        ),
        pytest.param(DeepseekV2Config(**V2), (False, "softmax", 1, 1), id="V2-Lite, saved"),
        pytest.param(
            DeepseekV2Config(topk_method="group_limited_greedy", n_group=8, topk_group=3),
            (False, "softmax", 8, 3),
            id="V2, published",
        ),
        pytest.param(
            DeepseekV2Config(topk_method="greedy", n_group=8, topk_group=3),
            (False, "softmax", 1, 1),
            id="greedy looks at no groups",
        ),
        pytest.param(SimpleNamespace(), (False, "softmax", 1, 1), id="MoE-16B"),
    ],
)
def test_routing_is_read_as_the_model_code_means_it(
    routing: Any, config: Any, wanted: tuple[Any, ...]
) -> None:
    assert tuple(routing(config)) == wanted


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        pytest.param(DeepseekV3Config(**V3), ("noaux_tc", "sigmoid", 8, 4), id="V3, saved"),
        pytest.param(DeepseekV2Config(**V2), ("greedy", "softmax", 1, 1), id="V2-Lite, saved"),
        pytest.param(
            DeepseekV2Config(topk_method="group_limited_greedy", n_group=8, topk_group=3),
            ("group_limited_greedy", "softmax", 8, 3),
            id="V2, published",
        ),
    ],
)
def test_a_config_is_spelled_out_for_code_that_reads_every_attribute(
    routing: Any, config: Any, wanted: tuple[Any, ...]
) -> None:
    before = dict(vars(config))
    spelled = routing(config).spelled_out(config)
    names = ("topk_method", "scoring_func", "n_group", "topk_group")
    assert tuple(getattr(spelled, name) for name in names) == wanted
    assert vars(config) == before
