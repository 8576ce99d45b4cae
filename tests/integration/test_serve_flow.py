"""`dspatch serve flags` and `metrics` from end to end, on a work tree of small sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspatch.cli import main
from tests.support import dedent
from tests.unit.test_serve_metrics import ENVS, LOGGERS
from tests.unit.test_serve_options import ARGS, FILES


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {**FILES, "vllm/envs.py": ENVS, "vllm/v1/metrics/loggers.py": LOGGERS}
    for name, text in files.items():
        path = tmp_path / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return tmp_path / "clone"


def ran(*words: str) -> int:
    """The exit code of a command."""
    try:
        main(list(words))
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_clean_command_line_ends_with_0(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("VLLM_PLAIN=x", "vllm", "serve", "M", "--share", "0.5", "--no-prefix", "-cc.seed", "3")
    assert ran("serve", "flags", "--repo", str(tree), "--json", "--", *words) == 0
    done = told(capsys)
    assert done["clean"]
    assert [each["state"] for each in done["verdicts"]] == ["known"] * 5
    assert ran("serve", "flags", "--repo", str(tree), "--", " ".join(words)) == 0
    assert "5 known" in capsys.readouterr().out


def test_every_state_is_told_and_ends_with_66(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "HOME=/ VLLM_SWITCH=on vllm serve M --warmup-steps 3 --old --share much"
    assert ran("serve", "flags", "--repo", str(tree), "--json", "--", words) == 66
    done = told(capsys)
    assert [(each["word"], each["state"]) for each in done["verdicts"]] == [
        ("HOME=/", "unchecked"), ("VLLM_SWITCH=on", "wrong"), ("M", "known"),
        ("--warmup-steps", "unknown"), ("--old", "deprecated"), ("--share", "wrong"),
    ]  # fmt: skip
    assert not done["clean"]


def test_a_hole_in_the_reading_is_no_clean_bill(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = tree / "vllm/engine/arg_utils.py"
    args.write_text(dedent(ARGS).replace('"--log"', "NAMES[0]"))
    assert ran("serve", "flags", "--repo", str(tree), "--json", "--", "vllm serve M --log") == 66
    done = told(capsys)
    assert done["verdicts"][-1]["state"] == "undecided"
    assert "vllm.engine.arg_utils" in done["notes"][0]


@pytest.mark.parametrize("words", ["ls -l", "vllm bench serve", "vllm serve 'M"])
def test_words_without_a_server_end_with_67(
    words: str, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran("serve", "flags", "--repo", str(tree), "--json", "--", words) == 67
    assert told(capsys)["exit_code"] == 67


def test_a_release_without_the_command_says_since_when_it_is_there(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "vllm/entrypoints/cli/serve.py").unlink()
    assert ran("serve", "flags", "--repo", str(tree), "--json", "--", "vllm serve M") == 66
    (command,) = told(capsys)["verdicts"]
    assert (command["word"], command["state"]) == ("vllm serve", "unknown")
    words = "python -m vllm.entrypoints.openai.api_server --share 1"
    assert ran("serve", "flags", "--repo", str(tree), "--", words) == 0


def test_dashboards_and_rules_are_held_against_the_tree(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board, rules = tmp_path / "board.json", tmp_path / "rules.yaml"
    board.write_text(json.dumps({"expr": "vllm:num_requests_running"}))
    rules.write_text("expr: vllm:cache_queries > 1\n")
    assert ran("serve", "metrics", "--repo", str(tree), str(board)) == 0
    assert "1 known" in capsys.readouterr().out
    assert ran("serve", "metrics", "--repo", str(tree), "--json", str(board), str(rules)) == 66
    assert [each["state"] for each in told(capsys)["verdicts"]] == ["known", "wrong"]
    board.write_text("{")
    assert ran("serve", "metrics", "--repo", str(tree), "--json", str(board)) == 67


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--write-ranges", "--rev", "v0.27.1"), "leave --rev, --repo and --env out"),
        (("--check-ranges", "--env", "python"), "leave --rev, --repo and --env out"),
        (("--check-ranges", "--", "vllm", "serve", "M"), "leave the command out"),
        (("--env", "python", "--rev", "v0.27.1", "--", "vllm serve M"), "leave --rev and --repo out"),
        ((), "write the command behind --"),
    ],
)  # fmt: skip
def test_words_that_exclude_each_other_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran("serve", "flags", *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
