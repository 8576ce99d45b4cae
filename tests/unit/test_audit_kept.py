"""What is kept of an audit of releases: found again by its question, read from an index only where it is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch import fetch, pipconfig
from dspatch.audit import history, kept
from dspatch.audit.select import Concern
from dspatch.carry.remote import releases
from dspatch.traits import Trait
from tests import audit_kit
from tests.unit.index_server import Index, serve
from tests.unit.test_audit_finding import load


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    with serve() as server:
        server.alone(monkeypatch)
        audit_kit.offer(server, v0_9_0=audit_kit.FILES, v0_10_0=audit_kit.FILES)
        yield server


def trait(name: str, **question: object) -> dict[str, Trait]:
    return {name: Trait(name=name, what="w", question=question)}


@pytest.mark.parametrize("key", ["probe", "decides"])
def test_the_traits_that_a_question_rests_on_are_part_of_it(key: str, tmp_path: Path) -> None:
    asked = {"not": {"trait": "outer"}}
    finding = replace(load(audit_kit.REFUSED, tmp_path), **{key: asked})
    outer = trait("outer", any=[{"file": "a.py"}, {"trait": "inner"}])
    before = kept.key(finding, outer | trait("inner", file="b.py"))
    assert kept.key(finding, outer | trait("inner", file="b.py")) == before
    assert kept.key(finding, outer | trait("inner", file="c.py")) != before
    assert kept.key(finding, outer | trait("inner", file="b.py") | trait("x", file="x")) == before


def test_releases_are_read_with_one_client_and_with_none_when_all_is_kept(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finding = load(audit_kit.REFUSED, tmp_path)
    concerns = [Concern(finding=finding, models=(), when=())]
    work = history.Work(engine="vllm", published=releases.published("vllm"), traits={})
    real, opened = pipconfig.client, []
    monkeypatch.setattr(pipconfig, "client", lambda config: opened.append(1) or real(config))
    steps: list[str] = []
    cold = history.measure(work, concerns, steps.append)
    assert len(opened) == 1
    assert [step.split(",")[0] for step in steps] == ["1 of 2", "2 of 2"]
    assert cold.rows[0].states == {"0.9.0": "yes", "0.10.0": "yes"}
    assert history.measure(work, concerns, steps.append).rows == cold.rows
    assert len(opened) == 1
