"""The benchmark of whole engines on a GPU: what it makes of what it kept, without one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import mla_engine

TIMES = [
    {
        "model": "lite",
        "batch": 64,
        "context": 1024,
        "stock": [[8.0], None],
        "patched": [None, None],
    },
    {
        "model": "lite",
        "batch": 1,
        "context": 4096,
        "stock": [[4.0, 5.0, 9.0], [3.0]],
        "patched": [[2.0], [1.0]],
    },
]


def test_the_times_are_told_by_the_middle_round() -> None:
    assert mla_engine.table({"times": TIMES}) == [
        "| model | batch | context | stock ms (rounds) | patched ms (rounds) | patched / stock |",
        "|---|---|---|---|---|---|",
        "| lite | 1 | 4096 | 4.000 (3.000–5.000) | 1.500 (1.000–2.000) | 0.38 |",
        "| lite | 64 | 1024 | 8.000 (8.000–8.000) | — | — |",
    ]


def test_each_engine_is_held_against_the_first() -> None:
    row = {"model": "m", "batch": 1, "context": 8, "a": [[2.0]], "b": [[1.0]], "c": [[3.0]]}
    lines = mla_engine.table({"times": [row]})
    assert lines[0].endswith("| c ms (rounds) | b / a | c / a |")
    assert lines[2].endswith("| 0.50 | 1.50 |")


def test_engines_that_only_spoke_have_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is a shape told of that nobody was asked for, nor is a table made of none."""
    spoken = SimpleNamespace(name="stock", read=list)
    monkeypatch.setattr(mla_engine, "engine", lambda *_: spoken)
    given = {"engine": ["stock=x"], "out": str(tmp_path), "small": "s", "model": []}
    mla_engine.run(argparse.Namespace(**given, budget=1.0, rounds=1))
    kept = json.loads((tmp_path / "engine.json").read_text())
    assert kept["small"] == {"stock": []}
    assert kept["times"] == []
    assert mla_engine.table(kept) == []


def test_two_models_of_one_name_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["mla_engine", "--out", "o", "--engine", "a=p:", "--model", "x/m", "--model", "y/m"]
    monkeypatch.setattr(sys, "argv", said)
    with pytest.raises(SystemExit):
        mla_engine.main()
    assert "give each another name" in capsys.readouterr().err
