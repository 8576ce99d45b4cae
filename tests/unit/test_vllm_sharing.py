"""Trials of vLLM's worker that one start of the engine serves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dspatch.engines.workers.vllm_worker import __main__ as worker
from dspatch.engines.workers.vllm_worker import weights


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Starts and ends of engines, in order; nothing is computed."""
    told: list[str] = []

    @contextmanager
    def started(checkpoint: str, options: Mapping[str, Any]) -> Iterator[object]:
        told.append(f"{checkpoint} {options['seed']}")
        yield object()
        told.append("end")

    @contextmanager
    def observed(spoil: object = None) -> Iterator[weights.Loading]:
        yield weights.Loading(loaded=["spoiled" if spoil else "whole"])

    monkeypatch.setattr(worker.engine, "started", started)
    monkeypatch.setattr(worker.engine, "model_of", lambda llm: None)
    monkeypatch.setattr(worker.engine, "facts", lambda llm: {"vllm": "1.0"})
    monkeypatch.setattr(worker.weights, "observed", observed)
    monkeypatch.setattr(worker.weights, "unfused", lambda parameters, config: {})
    monkeypatch.setattr(worker.runs, "forget", lambda llm: None)
    monkeypatch.setattr(worker.runs, "alone", lambda llm, model, trial: alone(trial))
    return told


def alone(trial: Mapping[str, Any]) -> dict[str, Any]:
    if trial["config"] == "broken":
        raise ValueError("broken")
    return {}


def asked(folder: Path, *trials: tuple[str, int, str]) -> Path:
    rows = [
        {
            "name": str(number),
            "out": str(folder / str(number)),
            "checkpoint": checkpoint,
            "options": {"seed": seed},
            "load_faults": ["gap"] if kind == "spoiled" else [],
            "only_alone": True,
            "config": kind,
        }
        for number, (checkpoint, seed, kind) in enumerate(trials)
    ]
    path = folder / "request.json"
    path.write_text(json.dumps({"trials": rows}))
    return path


def facts(folder: Path, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / str(number) / "result.json").read_text())
    return found


def test_neighbours_with_the_same_checkpoint_and_options_share_a_start(
    starts: list[str], tmp_path: Path
) -> None:
    trials = [("a", 0, ""), ("a", 0, ""), ("a", 1, ""), ("b", 1, ""), ("a", 0, "")]
    worker.main(asked(tmp_path, *trials))
    assert starts == ["a 0", "end", "a 1", "end", "b 1", "end", "a 0", "end"]
    first, second = facts(tmp_path, 0), facts(tmp_path, 1)
    assert (first["reached"], second["reached"]) == (["weights", "alone"], ["alone"])
    # The weights that a shared start loaded lie with the trial that it began with.
    loaded = str(tmp_path / "0" / "result.safetensors")
    assert first["loaded_in"] == second["loaded_in"] == loaded
    assert first["loaded"] == second["loaded"] == ["whole"]
    assert second["vllm"] == "1.0"
    assert facts(tmp_path, 4)["loaded_in"] == str(tmp_path / "4" / "result.safetensors")


def test_a_trial_that_only_loads_has_a_start_of_its_own(starts: list[str], tmp_path: Path) -> None:
    kinds = ("", "spoiled", "spoiled", "")
    worker.main(asked(tmp_path, *(("a", 0, kind) for kind in kinds)))
    assert starts == ["a 0", "end"] * 4
    loaded = [facts(tmp_path, number)["loaded"] for number in range(4)]
    assert loaded == [["whole"], ["spoiled"], ["spoiled"], ["whole"]]


def test_the_first_trial_that_fails_is_the_last(starts: list[str], tmp_path: Path) -> None:
    worker.main(asked(tmp_path, ("a", 0, ""), ("a", 0, "broken"), ("a", 0, ""), ("b", 0, "")))
    assert starts == ["a 0", "end"]
    assert facts(tmp_path, 1)["error"] == "ValueError: broken"
    assert not (tmp_path / "2").exists()
    assert not (tmp_path / "3").exists()
