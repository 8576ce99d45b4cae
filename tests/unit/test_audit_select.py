"""A finding reaches those whom it concerns, with what they did not say as its condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dspatch.audit import cards, conditions, select
from dspatch.audit.finding import Applies, Finding
from dspatch.audit.select import Model, User
from dspatch.errors import UnknownVariantError
from dspatch.variants import variant
from tests import audit_kit
from tests.unit.test_audit_finding import load

V3, LITE, DENSE = (variant(name) for name in ("deepseek-v3", "deepseek-v2-lite", "deepseek-llm-7b"))


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    return load(audit_kit.REFUSED, tmp_path_factory.mktemp("finding"))


def when(finding: Finding, user: User, **applies: tuple[str, ...]) -> tuple[str, ...] | None:
    """The conditions told to a user, `None` when the finding does not reach them."""
    found = list(select.concerning([replace(finding, applies=Applies(**applies))], user))
    return found[0].when if found else None


def user(model: Any = V3, config: dict[str, Any] | None = None, **given: Any) -> User:
    if "gpu" in given:
        given["card"] = cards.card(given.pop("gpu"))
    if "command" in given:
        given["command"] = tuple(given["command"].split())
    return User(models=(Model(variant=model, config=config),), **given)


@pytest.mark.parametrize(
    ("applies", "who", "told"),
    [
        ({}, user(), ()),
        ({"families": ("mla",)}, user(V3), ()),
        ({"families": ("mla",)}, user(DENSE), None),
        ({"families": ("mla", "sigmoid-router")}, user(LITE), None),
        ({"variants": ("deepseek-v3",)}, user(V3), ()),
        ({"variants": ("deepseek-v3",)}, user(LITE), None),
        ({"targets": ("cpu",)}, user(), ("on cpu",)),
        ({"targets": ("cpu",)}, user(target="cpu"), ()),
        ({"targets": ("cpu",)}, user(target="cuda"), None),
        ({"targets": ("cpu",)}, user(gpu="cpu"), ()),
        ({"targets": ("cpu",)}, user(gpu="a100"), None),
        ({"targets": ("cuda",), "cards": ("sm80",)}, user(), ("on sm80",)),
        ({"cards": ("sm80",)}, user(gpu="a100"), ()),
        ({"cards": ("sm80",)}, user(gpu="h100"), None),
        ({"cards": ("<sm90",)}, user(gpu="l40s"), ()),
        ({"cards": ("<sm90",)}, user(gpu="h100"), None),
        ({"cards": (">=sm100",)}, user(gpu="b200"), ()),
        ({"cards": (">=sm90",)}, user(gpu="mi300x"), None),
        ({"cards": ("sm80",)}, user(target="cpu"), None),
        ({"cards": ("sm80",)}, user(target="cuda"), ("on sm80",)),
        ({"options": ("--kv-cache-dtype fp8",)}, user(), ("with --kv-cache-dtype fp8",)),
        ({"options": ("--kv-cache-dtype fp8",)}, user(command="vllm serve --kv-cache-dtype fp8"), ()),
        ({"options": ("--kv-cache-dtype fp8",)}, user(command="serve --kv_cache_dtype=fp8"), ()),
        ({"options": ("--kv-cache-dtype fp8",)}, user(command="vllm serve --kv-cache-dtype auto"), None),
        ({"options": ("--a 1", "--b")}, user(), ("with --a 1 or --b",)),
        ({"options": ("--a 1", "--b")}, user(command="serve --b x"), ()),
        ({"options": ("--a 1 & --b",)}, user(command="serve --b x"), None),
        ({"options": ("--a 1 & --b",)}, user(command="serve --b --a 1"), ()),
        ({"options": ("VLLM_USE_V1=0",)}, user(command="VLLM_USE_V1=0 vllm serve"), ()),
        ({"options": ("VLLM_USE_V1",)}, user(command="VLLM_USE_V1=0 vllm serve"), ()),
        # What may be set elsewhere than on the command line stays a condition.
        ({"options": ("VLLM_USE_V1",)}, user(command="vllm serve"), ("with VLLM_USE_V1",)),
        ({"options": ("vllm:old_metric", "--flag")}, user(command="vllm serve"), ("with vllm:old_metric",)),
        ({"options": ("--tensor-parallel-size > 1",)}, user(), ("with --tensor-parallel-size > 1",)),
        ({"options": ("--tensor-parallel-size > 1",)}, user(command="serve -tp 8"), ()),
        ({"options": ("--tensor-parallel-size > 1",)}, user(command="serve --tensor_parallel_size=1"), None),
        ({"options": ("--tensor-parallel-size > 1",)}, user(command="serve m"), None),
        ({"options": ("--tensor-parallel-size > 1",)}, user(command="serve -tp many"), None),
        ({"options": ("VLLM_X", "VLLM_X=1", "--b")}, user(), ("with VLLM_X or --b",)),
        ({"options": ("--a & AMX tiles",)}, user(command="serve --a"), ("with --a and AMX tiles",)),
        ({"options": ("--a & AMX tiles",)}, user(command="serve"), None),
        ({"facts": ("n_group > 1",)}, user(V3), ()),
        ({"facts": ("n_group > 1",)}, user(LITE), None),
        ({"facts": ("rope.factor = 40",)}, user(V3), ()),
        ({"facts": ("rope_scaling = none",)}, user(V3), None),
        ({"facts": ("rope_scaling = none",)}, user(DENSE), ()),
        ({"facts": ("quantization = fp8",)}, user(V3), ()),
        ({"facts": ("kv_lora_rank + qk_rope_head_dim = 576",)}, user(V3), ()),
        ({"facts": ("q_lora_rank < 2000",)}, user(LITE), None),
        ({"facts": ("config.topk_method = none",)}, user(V3), ("config.topk_method = none",)),
        ({"facts": ("config.topk_method = none",)}, user(V3, {}), ()),
        ({"facts": ("config.topk_method = none",)}, user(V3, {"topk_method": "noaux_tc"}), None),
        ({"facts": ("config.torch_dtype = float16",)}, user(V3, {"torch_dtype": "float16"}), ()),
        ({"facts": ("checkpoint.n_group = 8",)}, user(V3), ("checkpoint.n_group = 8",)),
        ({"facts": ("checkpoint.n_group = 8",)}, user(V3, {}), ()),
        ({"facts": ("index.mtp = true",)}, user(V3, {}), ("index.mtp = true",)),
        ({"facts": ("index.mtp = true",)}, user(V3, {"index.mtp": True}), ()),
        ({"facts": ("no_such_fact = 1",)}, user(V3), ("no_such_fact = 1",)),
    ],
)  # fmt: skip
def test_whom_a_finding_reaches(
    finding: Finding, applies: dict[str, Any], who: User, told: tuple[str, ...] | None
) -> None:
    assert when(finding, who, **applies) == told


def test_of_several_models_those_are_named_that_it_concerns(finding: Finding) -> None:
    who = User(models=(Model(variant=V3), Model(variant=DENSE)))
    (found,) = select.concerning([finding], who)
    assert found.models == ("deepseek-v3",)


def test_cards_have_the_names_that_people_use() -> None:
    assert cards.card("A100").capability == "sm80"
    assert cards.card("NVIDIA H200").memory == 141
    assert cards.card("sm90").target == "cuda"
    assert cards.card("MI300X").target == "rocm"
    assert cards.card("cpu").target == "cpu"
    assert all(card.name == "cpu" or card.capability for card in cards.cards().values())
    with pytest.raises(UnknownVariantError, match="sm90"):
        cards.card("h1000x")


@pytest.mark.parametrize("text", ["n_group > 1", "a.b != none", "x + y = 3", "scale<=1.5"])
def test_conditions_that_can_be_read(text: str) -> None:
    assert conditions.is_readable(text)


@pytest.mark.parametrize("text", ["n_group", "n_group >", "= 3", "a b = 3", "a ~ 3"])
def test_conditions_that_cannot(text: str) -> None:
    assert not conditions.is_readable(text)
