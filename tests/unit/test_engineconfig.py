"""Configurations of TurboMind, held against the fields that its C++ reads."""

from __future__ import annotations

from typing import Any

import pytest

from dspatch.conformance import engineconfig

RELEASES = ("0.6.4", "0.7.3", "0.8.0", "0.12.1", "0.12.2", "0.13.0")
VALUES: dict[str, Any] = {
    "int": 1,
    "float": 1.5,
    "bool": True,
    "string": "yarn",
    "int[]": [1, 2],
    "string[]": ["a"],
    "rope": {},
}


def whole(version: str) -> dict[str, Any]:
    """A configuration with every field of a release."""
    found: dict[str, dict[str, Any]] = {"model": {}, "attention": {}, "rope": {}}
    for each in engineconfig.fields(version):
        found[each.section][each.name] = VALUES[each.type]
    if "rope_param" in found["attention"]:
        found["attention"]["rope_param"] = found["rope"]
    return {"model_config": found["model"], "attention_config": found["attention"]}


@pytest.mark.parametrize("version", RELEASES)
def test_a_whole_configuration_is_right_and_all_read(version: str) -> None:
    assert engineconfig.wrong(whole(version), version) == []
    assert engineconfig.unread(whole(version), version) == []


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("field", ["kv_lora_rank", "q_lora_rank", "qk_rope_dim", "v_head_dim"])
def test_a_field_that_is_gone_null_or_of_another_type_is_told(version: str, field: str) -> None:
    for value in (None, "512", 1.5, [512], True):
        config = whole(version)
        config["model_config"][field] = value
        assert f"model.{field}" in engineconfig.wrong(config, version)[0]
    config = whole(version)
    del config["model_config"][field]
    assert engineconfig.wrong(config, version) == [
        f"model.{field} is not there, and the engine needs it"
    ]


def test_what_only_one_type_of_rope_has_is_asked_of_it_alone() -> None:
    config = whole("0.13.0")
    rope = config["attention_config"]["rope_param"]
    del rope["beta_fast"]
    assert engineconfig.wrong(config, "0.13.0") == [
        "rope.beta_fast is not there, and the engine needs it"
    ]
    rope["type"] = "default"
    assert engineconfig.wrong(config, "0.13.0") == []


def test_a_field_that_a_release_does_not_read_yet_is_told() -> None:
    config = whole("0.12.1")
    config["model_config"]["scoring_func"] = "sigmoid"
    assert engineconfig.unread(config, "0.12.1") == ["model.scoring_func"]
    assert engineconfig.unread(config, "0.12.2") == []


def test_nothing_is_known_of_a_release_whose_source_nobody_read() -> None:
    assert engineconfig.fields("0.14.0") == []
    assert engineconfig.fields("0.13.0+dspatch.1a2b") == engineconfig.fields("0.13.0")
