"""What patched LMDeploy refuses to convert: the rendered module, run on the numbers of published models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dspatch import paths, render

FOLDER = paths.data("templates") / "lmdeploy"
LATENT: dict[str, Any] = {
    "model_arch": "DeepseekV2ForCausalLM",
    "kv_lora_rank": 512,
    "size_per_head": 576,
    "qk_rope_dim": 64,
    "expert_num": [0, 64],
    "experts_per_token": 6,
    "topk_method": "greedy",
    "topk_group": 1,
    "moe_group_num": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
}
EXPANDED = {**LATENT, "size_per_head": 192}
GROUPS = {"topk_method": "group_limited_greedy", "expert_num": [0, 160], "moe_group_num": 8}
BIAS = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}


def rendered(*, latent: bool = True, first: bool = False) -> dict[str, Any]:
    """The names of the module that is rendered for such a release."""
    traits = {"mla_latent": latent, "groups_before_softmax": first}
    context = render.Context(traits=traits, variants=())  # type: ignore[arg-type]
    module: dict[str, Any] = {"__name__": "limits", "__package__": ""}
    exec(render.render_file(FOLDER, "turbomind/limits.py.j2", context), module)
    return module


def refused(
    config: dict[str, Any], *, latent: bool, first: bool = False, grouped: bool = False
) -> str:
    """The reason of the module that is rendered for such a release; empty where it has none."""
    module = rendered(latent=latent, first=first)
    module["NOAUX_GROUPS"] = grouped
    try:
        module["need_computable"](SimpleNamespace(**config))
    except NotImplementedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("changes", [{}, GROUPS, BIAS, {"expert_num": []}, {"kv_lora_rank": 0}])
def test_what_the_latent_engine_computes_passes(changes: dict[str, Any]) -> None:
    assert refused({**LATENT, **changes}, latent=True) == ""


@pytest.mark.parametrize("changes", [{}, GROUPS])
def test_what_the_engine_of_full_heads_computes_passes(changes: dict[str, Any]) -> None:
    assert refused({**EXPANDED, **changes}, latent=False) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size_per_head": 160}, "heads of 160"),
        ({"qk_rope_dim": 32}, "rotated part of 32"),
        ({**BIAS, "moe_group_num": 8}, "8 groups"),
        ({**BIAS, "experts_per_token": 33}, "33 experts a token"),
        ({"scoring_func": "sigmoid"}, "scores by sigmoid"),
        ({**GROUPS, "expert_num": [0, 16]}, "16 experts in 8 groups"),
        ({**GROUPS, "norm_topk_prob": True}, "sum to one"),
        ({"topk_method": "other"}, "'other'"),
        ({"experts_per_token": 9}, "9 of them a token"),
    ],
)
def test_what_no_kernel_computes_is_refused_with_its_reason(
    changes: dict[str, Any], why: str
) -> None:
    assert why in refused({**LATENT, **changes}, latent=True)


def test_routers_that_a_release_lacks_or_has_wrong_are_refused() -> None:
    assert "does not have" in refused({**EXPANDED, **BIAS}, latent=False)
    assert "before the softmax" in refused({**EXPANDED, **GROUPS}, latent=False, first=True)


@pytest.mark.parametrize("wrong", ["512", None, 512.0, True, -1])
def test_a_size_that_is_no_whole_number_is_named(wrong: Any) -> None:
    need_whole, whole = rendered()["need_whole"], dict.fromkeys(rendered()["WHOLE"], 1)
    need_whole(whole)
    with pytest.raises(NotImplementedError, match="kv_lora_rank is"):
        need_whole({**whole, "kv_lora_rank": wrong})


def test_heads_that_a_tp_does_not_divide_are_refused() -> None:
    need_split = rendered()["need_split"]
    config = SimpleNamespace(kv_lora_rank=512, head_num=16)
    need_split(config, 8)
    with pytest.raises(NotImplementedError, match="with tp=3: 16 attention heads"):
        need_split(config, 3)
    need_split(
        SimpleNamespace(kv_lora_rank=0, head_num=16), 3
    )  # other models are none of its business


V3 = {**LATENT, **BIAS, "expert_num": [0, 256], "experts_per_token": 8}


@pytest.mark.parametrize(
    ("groups", "kept", "chosen", "passes"),
    [(8, 4, 8, True), (8, 8, 8, True), (7, 4, 8, False), (256, 4, 4, False), (64, 1, 8, False)],
)
def test_a_gate_that_was_compiled_for_groups_takes_those_that_it_can_choose_from(
    groups: int, kept: int, chosen: int, passes: bool
) -> None:
    config = {**V3, "moe_group_num": groups, "topk_group": kept, "experts_per_token": chosen}
    assert (refused(config, latent=True, grouped=True) == "") == passes
    assert "its kernel knows one" in refused(config, latent=True)
