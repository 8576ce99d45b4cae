"""Options, variables and metrics of real releases: as recorded, and as the engines' own parsers have them.

Sources are read by range and kept in the shared cache. `docs/proofs/serve-parsers.json` lists what the
parsers themselves say, built from the same sources by `benchmarks/serve_truth.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspatch import paths
from dspatch.audit.origins import published
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Published
from dspatch.cli import main
from dspatch.serve import engines, known, options
from dspatch.serve.options import Taken
from dspatch.stages import serveranges

pytestmark = pytest.mark.e2e
TRUTH: dict[str, dict[str, Any]] = json.loads(
    (paths.PACKAGE.parent / "docs" / "proofs" / "serve-parsers.json").read_text()
)
PROVEN = [(engine, version) for engine, by_version in TRUTH.items() for version in by_version]
READ = [
    *(("vllm", each) for each in ("0.4.2", "0.6.0", "0.8.5", "0.11.0", "0.20.2", "0.27.1", "0.33.0")),
    *(("lmdeploy", each) for each in ("0.7.1", "0.18.0")),
]  # fmt: skip
FACTS = {engine: engines.facts(engine) for engine in ("vllm", "lmdeploy")}
VALUES = {None: "one", 0: "none", "?": "optional", "*": "any", "+": "some"}


@pytest.fixture(scope="module")
def listed() -> dict[str, Published]:
    return {each: releases.published(each, prereleases=True, yanked=True) for each in FACTS}


@pytest.mark.parametrize(("engine", "version"), READ)
def test_a_release_reads_as_it_is_recorded(
    engine: str, version: str, listed: dict[str, Published]
) -> None:
    with published(engine, version, Traffic(), among=listed[engine]) as source:
        names = serveranges.names(source, FACTS[engine])  # raises where anything was lost
    measured = known.of_names({version: names})
    assert list(serveranges.differences(known.load(engine), measured)) == []
    assert len(set(names["options"])) > 30


def serving(engine: str, version: str, listed: dict[str, Published]) -> Taken:
    with published(engine, version, Traffic(), among=listed[engine]) as source:
        found = options.read(source, FACTS[engine], FACTS[engine].servers[-1])
    assert found is not None
    return found


@pytest.mark.parametrize(("engine", "version"), PROVEN)
def test_what_is_read_is_what_the_parser_itself_has(
    engine: str, version: str, listed: dict[str, Published]
) -> None:
    """Recall and precision of names are 1, values are taken alike, and no choice is refused wrongly."""
    taken = serving(engine, version, listed)
    truth = TRUTH[engine][version]["options"]
    right = set(taken.table) & set(truth)
    recall, precision = len(right) / len(truth), len(right) / len(taken.table)
    assert (recall, precision) == (1.0, 1.0), set(taken.table) ^ set(truth)
    for name, said in truth.items():
        option = taken.table[name]
        wanted = VALUES.get(said["nargs"], "one")
        assert (option.values, name) == (wanted, name)
        if isinstance(said["nargs"], int) and said["nargs"]:
            assert option.count == said["nargs"]
        if option.choices is not None:
            assert set(said["choices"] or ()) <= set(option.choices), name
            assert said["choices"], name


@pytest.mark.parametrize("version", [each for engine, each in PROVEN if engine == "vllm"])
def test_the_variables_that_are_recorded_are_those_of_the_engines_table(version: str) -> None:
    record = known.load("vllm")
    ours = {
        name
        for name in record.names["environment"]
        if version in record.releases_of("environment", name)
    }
    assert set(TRUTH["vllm"][version]["variables"]) <= ours


def test_the_command_says_all_of_it_about_a_real_release(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "VLLM_CUSTOM_OPS_PATH=/x",
        "VLLM_USE_V1=0",
        "vllm",
        "serve",
        "M",
        "--warmup-steps",
        "3",
    ]
    words += ["--recompute-activations", "--attention_type", "mla", "--swap-space", "4", "-tp", "8"]
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "flags", "--rev", "v0.27.1", "--json", "--", *words])
    assert stopped.value.code == 66
    done = json.loads(capsys.readouterr().out)
    states = {each["word"]: each["state"] for each in done["verdicts"]}
    assert states == {
        "VLLM_CUSTOM_OPS_PATH=/x": "unknown", "VLLM_USE_V1=0": "unknown", "M": "known",
        "--warmup-steps": "unknown", "--recompute-activations": "unknown", "--attention_type": "unknown",
        "--swap-space": "unknown", "-tp": "known",
    }  # fmt: skip
    assert all(each["say"] for each in done["verdicts"] if each["state"] == "unknown")
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "flags", "--rev", "v0.27.1", "--", "vllm", "serve", "M", "-tp", "8"])
    assert stopped.value.code == 0


def test_the_command_says_all_of_it_about_a_dashboard(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    board = tmp_path / "board.json"
    names = [
        "gpu_cache_usage_perc",
        "kv_cache_usage_perc",
        "prompt_tokens",
        "prompt_tokens_total",
        "gpu_utilization",
    ]
    board.write_text(json.dumps([{"expr": f"vllm:{name}"} for name in names]))
    with pytest.raises(SystemExit) as stopped:
        main(["serve", "metrics", "--rev", "v0.27.1", "--json", str(board)])
    assert stopped.value.code == 66
    done = json.loads(capsys.readouterr().out)
    states = {each["word"].removeprefix("vllm:"): each["state"] for each in done["verdicts"]}
    assert states == dict(
        zip(names, ["unknown", "known", "wrong", "known", "unknown"], strict=True)
    )
