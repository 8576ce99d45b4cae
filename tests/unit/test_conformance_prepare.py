"""Golden results taken along: what a machine without the oracle's environment may and may not do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dspatch import paths
from dspatch.bench.alarms import Plan
from dspatch.cli import cli
from dspatch.conformance import oracle, small
from dspatch.errors import CheckpointError, EngineEnvironmentError


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> oracle.Oracle:
    """The oracle of a machine that names a Python of its own."""
    monkeypatch.setenv("DSPATCH_ORACLE", sys.executable)
    return oracle.ensure()


def test_the_named_python_measures_and_no_environment_is_made(standing: oracle.Oracle) -> None:
    assert standing.python == Path(sys.executable)
    assert standing.environment is None
    assert not (paths.cache() / "envs").exists()


def test_a_python_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPATCH_ORACLE", "/no/such/python")
    with pytest.raises(EngineEnvironmentError, match="no Python"):
        oracle.ensure()


def test_results_that_were_not_taken_along_are_refused_with_the_command(
    standing: oracle.Oracle,
) -> None:
    with pytest.raises(CheckpointError) as caught:
        standing.golden([small.case("deepseek-v3")])
    assert "--prepare FOLDER --variant deepseek-v3" in caught.value.next


def test_pairs_of_a_count_that_were_not_taken_along_are_refused_with_its_own_command(
    standing: oracle.Oracle,
) -> None:
    pair = Plan(models=("deepseek-v3",), checkpoints=1, prompt_sets=1).drawn()[0][0]
    with pytest.raises(CheckpointError) as caught:
        standing.golden([pair])
    assert "bench alarms --prepare FOLDER, with the same --checkpoints" in caught.value.next


@pytest.mark.parametrize(
    ("installed", "makes"),
    [
        ({"transformers": "pinned", "torch": "2.11.0+cu130"}, True),
        ({"transformers": "5.17.0"}, False),
        ({"transformers": "pinned", "numpy": ""}, False),
    ],
)
def test_a_named_python_makes_golden_results_with_the_pinned_transformers_only(
    installed: dict[str, str], makes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = dict(one.split("==") for one in oracle.requirements())
    found = pins | {k: pins[k] if v == "pinned" else v for k, v in installed.items()}
    has = {name: (version, Path("site")) for name, version in found.items() if version}
    monkeypatch.setattr(oracle, "distributions", lambda python, names: has)
    monkeypatch.setenv("DSPATCH_ORACLE", sys.executable)
    standing = oracle.ensure()
    assert standing.makes is makes
    # What it makes is known by what it was made with; what was taken along, by the pinned versions.
    pinned = oracle.Oracle(python=Path("other"), requirements=oracle.requirements())
    assert (standing.identity == pinned.identity) is not makes


def test_counting_needs_an_engine_or_a_folder_to_prepare() -> None:
    done = CliRunner().invoke(cli, ["bench", "alarms"])
    assert done.exit_code == 2
    assert "--of, or a folder with --prepare" in done.output


def test_identity_is_that_of_the_machine_that_made_them(standing: oracle.Oracle) -> None:
    made = oracle.Oracle(python=Path("other"), requirements=oracle.requirements())
    assert standing.identity == made.identity


def test_golden_results_without_their_recipe_are_not_enough(standing: oracle.Oracle) -> None:
    case = small.case("deepseek-v3")
    path = standing._golden(case).path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no golden results of deepseek-v3"):
        standing.golden([case])


@pytest.mark.parametrize(
    "word",
    ["--env=python3", "--selftest", "--rev=v0.27.1", "--adversarial", "--quantised=fp8", "--tp=2", "--api"],
)  # fmt: skip
def test_preparing_runs_no_engine(word: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["conformance", "--prepare", str(tmp_path / "g"), word])
    assert done.exit_code == 2
    assert "--prepare runs no engine" in done.output
    assert not (tmp_path / "g").exists()


def test_a_recipe_says_what_must_come_out(tmp_path: Path, standing: oracle.Oracle) -> None:
    made = standing._golden(small.case("deepseek-v3")).checkpoint
    made.path.mkdir(parents=True)
    for name in ("config.json", "oracle.json"):
        (made.path / name).write_text("{}\n")
    made.weights.write_bytes(b"weights")
    recipe = json.loads(json.dumps(made.as_recipe()))
    assert recipe["files"] == {"config.json": "{}\n", "oracle.json": "{}\n"}
    assert recipe["config"]["model_type"] == "deepseek_v3"
    assert len(recipe["sha256"]) == 64
