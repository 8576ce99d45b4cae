"""Options, variables and metrics of real releases: as recorded, and as the engines' own parsers have them.

Sources are read by range and kept in the shared cache. `docs/proofs/serve-parsers.json` lists what the
parsers themselves say, built from the same sources by `benchmarks/serve_truth.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspatch import paths
from dspatch.audit import finding as findings
from dspatch.audit import recorded
from dspatch.audit.origins import published
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Published
from dspatch.cli import main
from dspatch.serve import answers, engines, known, options
from dspatch.serve.answers import Answer
from dspatch.serve.known import Kind, Known
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
# What a bare name in the record of answers may end with.
KINDS: tuple[Kind, ...] = ("options", "environment", "metrics", "hidden")


@pytest.fixture(scope="module")
def listed() -> dict[str, Published]:
    return {each: releases.published(each, prereleases=True, yanked=True) for each in FACTS}


@pytest.mark.parametrize(("engine", "version"), READ)
def test_a_release_reads_as_it_is_recorded(
    engine: str, version: str, listed: dict[str, Published]
) -> None:
    with published(engine, version, Traffic(), among=listed[engine]) as source:
        names = serveranges.names(source, FACTS[engine])  # raises where anything was lost
    measured = known.of_names([version], {version: names})
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


def every_answer() -> Iterator[tuple[str, Answer]]:
    for engine in FACTS:
        for one in dict.fromkeys(answers.load(engine).values()):
            yield engine, one


def having(record: Known, name: str) -> set[str]:
    """The releases that have a name of whatever kind, a value behind it left out."""
    base = name.split()[0].partition("=")[0]
    base = base.partition(".")[0] if base.startswith("--") else base
    return {version for kind in KINDS for version in record.releases_of(kind, base)}


@pytest.mark.parametrize(
    ("engine", "answer"), every_answer(), ids=lambda each: getattr(each, "names", [each])[0]
)
def test_an_answer_is_true_of_the_releases(engine: str, answer: Answer) -> None:
    record = known.load(engine)
    every = set(record.releases)
    for name in answer.names:
        there = having(record, name)
        if answer.fate == "never":
            assert not there, (name, record.ranges("options", name))
        elif not name.startswith(FACTS[engine].metric_prefix) or there:
            assert there, name
            assert there < every, name
    if answer.fate != "never":
        assert any(having(record, name) for name in answer.names)
    for name in answer.instead:
        assert having(record, name), name
        if answer.fate == "renamed":
            # Where the old name is gone, the new one is there.
            last = max(record.releases.index(v) for n in answer.names for v in having(record, n))
            assert last + 1 == len(record.releases) or having(record, name) & set(
                record.releases[last + 1 :]
            )


@pytest.mark.parametrize(("engine", "answer"), [each for each in every_answer() if each[1].finding])
def test_an_answer_and_its_finding_say_the_same(engine: str, answer: Answer) -> None:
    """One knowledge: the finding exists, and where it holds, the name is not there to be used."""
    (finding,) = [
        each for each in findings.load_all(engine, _traits(engine)) if each.id == answer.finding
    ]
    ranges = recorded.load(engine)
    record = known.load(engine)
    holds = [v for v in record.releases if ranges.state(finding.id, v) == "yes"]
    assert holds
    for name in answer.names:
        visible = {
            v
            for kind in ("options", "environment", "metrics")
            for v in record.releases_of(kind, name)
        }
        assert not visible & set(holds), (name, sorted(visible & set(holds)))


def _traits(engine: str) -> Any:
    from dspatch import series

    return series.layered(engine).traits


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
    main(["serve", "flags", "--rev", "v0.27.1", "--", "vllm", "serve", "M", "-tp", "8"])


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
