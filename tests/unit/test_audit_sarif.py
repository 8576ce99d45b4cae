"""SARIF as its schema wants it: the essentials, held without the schema at hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dspatch.audit import answer, sarif
from dspatch.audit.answer import Evidence
from dspatch.stages.audit import Audited, Found
from tests import audit_kit
from tests.unit.test_audit_finding import load

PLACES = (
    Evidence(file="vllm/cpu.py", line=5, symbol="CpuPlatform.backend", text="raise X"),
    Evidence(file="vllm/models.py", text="is not there"),
    Evidence(file="", text="version 0.9.0"),
)


@pytest.fixture
def done(tmp_path: Any) -> Audited:
    refused, absent, kernel = (
        load(text, tmp_path / str(n)) for n, text in enumerate(audit_kit.ALL)
    )
    has = Found(
        finding=refused, answer=answer.yes(*PLACES), models=("deepseek-v3",), when=("on cpu",),
        first_good="0.11.0", recorded=True, command="dspatch run --engine vllm",
    )  # fmt: skip
    return Audited(
        engine="vllm", version="0.9.0", kind="release", origin="vllm.whl", models=("deepseek-v3",),
        target=None, card=None,
        has=(has, replace(has, finding=absent, answer=answer.yes(), when=())),
        unknown=(replace(has, finding=kernel, answer=answer.unknown("csrc is not there")),),
        clean=("vllm-other",), others=1, bytes=0, requests=0, seconds=0.1,
    )  # fmt: skip


def test_the_log_has_what_the_schema_requires(done: Audited) -> None:
    log = json.loads(json.dumps(sarif.log(done)))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for result in run["results"]:
        assert result["message"]["text"]
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["kind"] in ("fail", "open")
        # The standard: a kind other than `fail` has the level `none`.
        assert (result["level"] == "none") == (result["kind"] != "fail")
        for location in [*result.get("locations", []), *result.get("relatedLocations", [])]:
            physical = location["physicalLocation"]
            assert physical["artifactLocation"]["uri"]
            assert physical["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
            assert physical.get("region", {"startLine": 1})["startLine"] >= 1


def test_what_is_unknown_is_open_and_never_left_out(done: Audited) -> None:
    results = sarif.log(done)["runs"][0]["results"]
    assert [result["kind"] for result in results] == ["fail", "fail", "open"]
    assert "cannot be told: csrc is not there" in results[2]["message"]["text"]
    assert [result["level"] for result in results] == ["error", "warning", "none"]


def test_places_are_those_of_the_engines_source(done: Audited) -> None:
    first, second, _ = sarif.log(done)["runs"][0]["results"]
    (location,) = first["locations"]
    assert location["physicalLocation"]["region"] == {"startLine": 5}
    assert location["logicalLocations"] == [{"fullyQualifiedName": "CpuPlatform.backend"}]
    (related,) = first["relatedLocations"]
    assert "region" not in related["physicalLocation"]
    assert "locations" not in second
    assert "(when: on cpu)" in first["message"]["text"]
