"""Output: results on stdout, progress only where somebody watches, one object with --json."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
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


WATCHED = """
from dspatch.console import Console
with Console().progress("fetching") as progress:
    progress(1, 2)
with Console().working("building") as step:
    step("more")
"""


def test_a_terminal_sees_progress() -> None:
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-c", WATCHED],
        check=True,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # the other end of a terminal is closed by an error
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    assert b"fetching" in seen
    assert b"building" in seen


@dataclass
class Told:
    values: frozenset[float]


def test_what_is_not_finite_is_text_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": [1.5, (math.inf, -math.inf)], "b": Told(frozenset({math.nan})), "c": Path("x")}
    Console(as_json=True).result(value)
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"a": [1.5, ["inf", "-inf"]], "b": {"values": ["nan"]}, "c": "x"}


def test_tables_align_and_the_last_column_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    Console().table(("A", "B"), [("x", "long " * 50), ("longer", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.index(word) for line, word in zip(lines, ("B", "long", "y"), strict=True)] == [
        8,
        8,
        8,
    ]
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
