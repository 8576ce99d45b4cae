"""What an engine cannot be asked is told apart from what breaks when it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import UnaskableError, probed
from kept import Kept

from dspatch.engines.workers.lmdeploy_worker import __main__ as lmdeploy
from dspatch.engines.workers.lmdeploy_worker import probes as of_lmdeploy
from dspatch.engines.workers.vllm_worker import __main__ as vllm
from dspatch.engines.workers.vllm_worker import probes as of_vllm
from dspatch.engines.workers.vllm_worker import runs

ERRORS = [AttributeError, KeyError, TypeError, ValueError, RuntimeError]


def raising(error: Exception) -> Callable[..., Any]:
    def run(*given: Any) -> dict[str, Any]:
        raise error

    return run


def kept(folder: Path) -> Kept:
    found = Kept(folder)
    found.facts |= {"unprobed": {}, "broken": {}}
    return found


def test_what_cannot_be_asked_is_told_with_its_reason(tmp_path: Path) -> None:
    found = kept(tmp_path)
    probed(found, "turned", raising(UnaskableError("no table")))
    probed(found, "late", dict)
    assert found.facts["unprobed"] == {"turned": "no table"}
    assert found.facts["broken"] == {}
    assert json.loads((tmp_path / "partial.json").read_text())["reached"] == ["late"]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_of_the_run_itself_is_no_reason_not_to_look(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = {"probes": ["late"]}
    monkeypatch.setattr(runs, "forget", lambda llm: None)
    monkeypatch.setitem(of_vllm.PROBES, "late", raising(kind("planted")))
    monkeypatch.setitem(of_lmdeploy.PROBES, "late", raising(kind("planted")))
    for ask in (
        lambda one: vllm._probe(None, None, trial, one),
        lambda one: lmdeploy._probe(None, trial, one),  # type: ignore[arg-type]
    ):
        found = kept(tmp_path)
        ask(found)
        assert found.facts["unprobed"] == {}
        assert found.facts["broken"]["late"].startswith(f"{kind.__name__}: ")


def test_a_run_that_breaks_under_a_fault_is_told_apart_from_a_fault_that_no_engine_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "forget", lambda llm: None)
    monkeypatch.setitem(runs.HOOKS, "a", raising(UnaskableError("no router")))
    monkeypatch.setitem(runs.HOOKS, "b", raising(KeyError("layer.3")))
    asked = [{"name": name, "hook": name, "run": "alone"} for name in "ab"]
    _, refused = runs.faulty(None, None, {"hook_faults": asked, "config": {}}, {})
    assert refused == {"a": "no router", "b": "it broke: KeyError: 'layer.3'"}
