"""What the series reads from DeepSeek configs, beside transformers' own config classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.templatekit import rendered

V2 = {"topk_method": "greedy", "n_group": None, "topk_group": None}
V3 = {"n_group": 8, "topk_group": 4}


class DeepseekV2Config(SimpleNamespace):
    """Stands for transformers' class of that name."""

    model_type = "deepseek_v2"


class DeepseekV3Config(SimpleNamespace):
    """Stands for transformers' class of that name."""

    model_type = "deepseek_v3"


# Configs, and what code finds in them that reads every attribute.
SPELLED = [
    pytest.param(DeepseekV3Config(**V3), ("noaux_tc", "sigmoid", 8, 4), id="V3, saved"),
    pytest.param(DeepseekV2Config(**V2), ("greedy", "softmax", 1, 1), id="V2-Lite, saved"),
    pytest.param(
        DeepseekV2Config(topk_method="group_limited_greedy", n_group=8, topk_group=3),
        ("group_limited_greedy", "softmax", 8, 3),
        id="V2, published",
    ),
]


def routed(config: Any) -> tuple[Any, ...]:
    """What a config says of its routing, read outright."""
    return config.topk_method, config.scoring_func, config.n_group, config.topk_group


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


@pytest.mark.parametrize(("config", "wanted"), SPELLED)
def test_a_config_is_spelled_out_for_code_that_reads_every_attribute(
    routing: Any, config: Any, wanted: tuple[Any, ...]
) -> None:
    before = dict(vars(config))
    assert routed(routing(config).spelled_out(config)) == wanted
    assert vars(config) == before


@pytest.fixture
def spell_out() -> Iterator[Any]:
    """`spell_out` of releases whose whole model reads outright, rendered."""
    module = rendered("models/deepseek_saved", "deepseek_saved")
    yield module.spell_out
    del sys.modules[module.__name__]


@pytest.mark.parametrize(("config", "wanted"), SPELLED)
def test_a_config_is_spelled_out_in_place_for_a_model_that_reads_every_attribute(
    spell_out: Any, config: Any, wanted: tuple[Any, ...]
) -> None:
    config = copy(config)
    spell_out(config)
    assert (*routed(config), config.moe_layer_freq) == (*wanted, 1)


def test_what_a_config_says_is_not_spelled_out_anew(spell_out: Any) -> None:
    said = {"topk_method": None, "scoring_func": "softmax", "moe_layer_freq": 2, "rope_theta": 7}
    config = DeepseekV3Config(**V3, **said)
    spell_out(config)
    assert vars(config) == V3 | said


YARN = {"rope_type": "yarn", "rope_theta": 8, "factor": 40}


@pytest.mark.parametrize(
    ("saved", "theta", "scaling"),
    [(YARN, 8, YARN), ({"rope_type": "default", "rope_theta": 8}, 8, None), (None, 7, None)],
)
def test_rope_that_was_saved_as_one_field_is_read_as_two(
    spell_out: Any, saved: Any, theta: int, scaling: Any
) -> None:
    config = DeepseekV3Config(**V3, rope_theta=7, rope_scaling=None, rope_parameters=saved)
    spell_out(config)
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)
