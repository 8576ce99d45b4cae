"""Output: results on stdout, progress only where somebody watches, one object with --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspatch.console import Console


def test_piped_progress_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    with console.working("building") as step:
        step("more")
    with console.progress("fetching") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "lively", True)
    with Console().progress("fetching") as progress:
        progress(1, 2)
    assert "fetching" in capsys.readouterr().err
    with Console().working("building") as step:
        step("more")


def test_tables_align_and_the_last_column_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    Console().table(("A", "B"), [("x", "long " * 50), ("longer", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.index(word) for line, word in zip(lines, ("B", "long", "y"), strict=True)] == [8, 8, 8]
    assert lines[1].rstrip().endswith(("long " * 50).rstrip())


def test_json_is_the_only_thing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(as_json=True)
    console.say("x")
    console.note("y")
    console.table(("A",), [("x",)])
    console.result({"path": Path("a/b"), "set": frozenset({"b", "a"})})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"path": "a/b", "set": ["a", "b"]}
    assert err == ""
