"""The count of false alarms: no two pairs are alike, every alarm is counted, and one takes the bound away."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspatch.bench import alarms, ties
from dspatch.bench.alarms import Count, Judged, Plan
from dspatch.cli import cli, main
from dspatch.conformance import checkpoint, checks, small, suite
from dspatch.conformance.report import CheckResult, Status
from dspatch.conformance.small import Case
from dspatch.console import Console, json_of
from dspatch.errors import FalseAlarmError, NoToleranceError
from dspatch.stages import alarms as stage
from dspatch.stages import proving, show_alarms
from tests.unit.test_conformance_checks import of_run, seen
from tests.unit.test_prove_any import subject

FEW = Plan(models=("deepseek-v3", "deepseek-v2-lite/plain-rope"), checkpoints=3, prompt_sets=2)


def result(name: str, status: Status, check: str = "golden.fp32", **more: Any) -> CheckResult:
    return CheckResult(check=check, variant=name, dtype="float32", status=status, **more)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--of", "python3"], 2, "go with a count"),
        (["-o", "alarms.json"], 2, "go with a count"),
        (["--dtype", "bfloat16", "--variant", "deepseek-v3/quiet"], 62, "cannot be judged"),
    ],
)
def test_what_preparing_would_not_look_at_is_refused(
    words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "alarms", "--prepare", str(tmp_path / "goldens"), *words])
    assert stop.value.code == code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "goldens").exists()


def test_every_pair_is_another() -> None:
    drawn = FEW.drawn()
    cases = [case for one in drawn for case in one]
    assert len({case.name for case in cases}) == 6
    assert [one[0].variant for one in drawn] == ["deepseek-v3", "deepseek-v2-lite", "deepseek-v3"]
    keys = [{checkpoint.of(case, written_with="x").key for case in one} for one in drawn]
    assert [len(each) for each in keys] == [1, 1, 1]
    assert len(set.union(*keys)) == 3
    texts = {str(small.prompts(case.dice)) for case in cases}
    assert len(texts) == 6
    assert str(small.prompts()) not in texts
    other = replace(FEW, seed=7).drawn()
    assert other[0][0].seed not in {case.seed for case in cases}


def test_the_usual_plan_has_every_shape_and_two_hundred_pairs() -> None:
    drawn = Plan().drawn()
    assert (len(drawn), {len(one) for one in drawn}) == (20, {10})
    named = small.rules()["alarms"]["models"]
    assert sorted(named) == sorted(set(named))
    assert {one[0].variant for one in drawn} == {"deepseek-v2-lite", "deepseek-v2", "deepseek-v3"}
    forms = {name.partition("/")[2] for name in named}
    tried = {
        name.partition("/")[2] for name in small.adversarial(["deepseek-v2-lite", "deepseek-v3"])
    }
    assert tried - forms == {"tied", "passkey"}


def test_of_one_load_what_takes_no_prompt_is_judged_once() -> None:
    case = small.case("deepseek-v3")
    asked, again = suite.asked(case), suite.asked(case, further=True)
    assert set(asked) - set(again) == {"routed", "turned"}
    first = {one.check for one in suite.results(seen())}
    more = {one.check for one in suite.results(seen(), further=True)}
    assert first - more == {"engine.start", *checks.fitting(seen().config, checks.OF_LOAD)}
    assert {"golden.fp32", "sampling.distribution", "decode.late"} <= more


class Tying:
    """An oracle by whose second model a router nearly ties on the prompts of some seeds."""

    def __init__(self, *dice: int | None) -> None:
        self.tied, self.asked = dice, list[int | None]()

    def golden(self, cases: Sequence[Case], progress: Any) -> Sequence[Case]:
        return cases

    def margins(self, golden: Sequence[Case]) -> list[float]:
        self.asked += [case.dice for case in golden]
        return [8e-8 if case.dice in self.tied else 1e-5 for case in golden]


def test_prompts_on_which_a_router_nearly_ties_are_drawn_again_and_counted() -> None:
    (cases, *_) = Plan(models=FEW.models, checkpoints=1, prompt_sets=3).drawn()
    tied, twice = cases[1].dice or 0, (cases[1].dice or 0) + ties.FURTHER
    found = ties.settled(cases, Tying(tied, twice))  # type: ignore[arg-type]
    assert found == [cases[0], replace(cases[1], dice=tied + 2 * ties.FURTHER), cases[2]]
    assert found == ties.settled(cases, Tying(tied, twice)), "always the same"  # type: ignore[arg-type]
    assert ties.again(cases, found) == 1
    assert small.prompts(found[1].dice) != small.prompts(cases[1].dice)
    needed = ties.every(cases, Tying(tied, twice))  # type: ignore[arg-type]
    assert [case.dice for case in needed if case.name == cases[1].name] == [
        tied,
        twice,
        found[1].dice,
    ]
    oracle = Tying(tied)
    ties.settled(cases, oracle)  # type: ignore[arg-type]
    assert oracle.asked == [*(case.dice for case in cases), twice], "nobody settled is asked again"


def test_a_model_whose_routers_tie_on_whatever_is_drawn_is_left_to_the_oracle_s_controls() -> None:
    (cases, *_) = Plan(models=FEW.models, checkpoints=1, prompt_sets=1).drawn()
    always = [(cases[0].dice or 0) + turn * ties.FURTHER for turn in range(99)]
    oracle = Tying(*always)
    (found,) = ties.settled(cases, oracle)  # type: ignore[arg-type]
    assert len(oracle.asked) == ties.TURNS
    assert found.dice == always[ties.TURNS]


def test_how_many_were_drawn_again_is_told() -> None:
    cases = FEW.drawn()
    rows = (replace(_one(cases[0]), redrawn=1), _one(cases[1]))
    count = Count(rows=rows)
    told = json.loads(json_of(count.as_dict()))
    assert (told["pairs-drawn-again"], [row["redrawn"] for row in told["rows"]]) == (1, [1, 0])
    assert Judged.read(told["rows"][0]) == rows[0]
    done = stage.Counted(name="vllm 1", dtype="float32", count=count, file=Path("a.json"))
    assert "nearly tied on them: 1 of 4 pairs" in "\n".join(show_alarms.sentences(done))


def _one(cases: Sequence[Case], *spoiled: str) -> Judged:
    """What the checks say of a run of these cases, with a wrong last chunk in those that are named."""
    results = [
        replace(one, variant=case.name)
        for case in cases
        for one in suite.results(
            of_run("alone", prefill_logprob=0.02) if case.name in spoiled else seen()
        )
    ]
    return alarms.judged(cases, results)


def test_a_fault_that_a_check_sees_is_an_alarm_and_takes_the_bound_away() -> None:
    cases = FEW.drawn()
    sound = Count(rows=tuple(_one(each) for each in cases))
    assert (sound.alarms, sound.bound, sound.bound_of_checkpoints) == ((), 3 / 6, 3 / 3)
    rows = tuple(_one(each, "deepseek-v3#2.1") for each in cases)
    found = Count(rows=rows)
    assert [row.alarmed for row in rows] == [0, 0, 1]
    assert (found.bound, found.bound_of_checkpoints) == (None, None)
    assert found.judged == sound.judged
    (alarm,) = found.alarms
    assert alarm.startswith("deepseek-v3#2.1: prefill.chunked: 0.02 over 0.001")
    nearest = found.nearest["prefill.chunked"]
    assert (nearest.measured, nearest.tolerance, nearest.pair) == (0.02, 0.001, "deepseek-v3#2.1")


def test_nothing_is_bounded_by_nothing() -> None:
    assert alarms.bound(0, 0) is None
    # The rule of three is on the safe side of what it stands for.
    for tries in (1, 20, 200):
        assert 1 - 0.05 ** (1 / tries) < (alarms.bound(tries, 0) or 0)


def test_what_was_not_shown_is_neither_judged_nor_near(tmp_path: Path) -> None:
    (cases, *_) = FEW.drawn()
    row = alarms.judged(
        cases,
        [
            result(cases[0].name, "pass", measured=0.0, tolerance=0.0),
            result(cases[1].name, "not-shown", "logits.kl", measured=3.0),
            result("another#0.0", "fail", measured=9.0, tolerance=1.0),
        ],
    )
    assert (row.passed, row.alarms, row.unshown) == (1, (), {"logits.kl": 1})
    count = Count(rows=(row,))
    (read,) = json.loads(json_of(count.as_dict()))["rows"]
    assert (Judged.read(read), count.unshown) == (row, {"logits.kl": 1})
    assert set(row.nearest) == {"golden.fp32"}


def test_no_number_is_farther_than_any() -> None:
    (cases, *_) = FEW.drawn()
    numbers = (2e-8, math.nan)
    results = [
        result(case.name, "fail", measured=number, tolerance=1e-8)
        for case, number in zip(cases, numbers, strict=True)
    ]
    assert alarms.judged(cases, results).nearest["golden.fp32"].measured == math.inf


def test_a_count_that_stopped_goes_on_and_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measured(*given: Any) -> list[Judged]:
        few = given[3]
        asked.append(len(few))
        return [_one(cases, *(c.name for c in cases if "#2.0" in c.name)) for cases in few]

    monkeypatch.setattr(stage, "_measured", measured)
    file, console = tmp_path / "alarms.json", Console(as_json=True)
    stage.run(subject(), replace(FEW, checkpoints=2), file, console)
    done = stage.run(subject(), FEW, file, console)
    assert (asked, len(done.count.rows)) == ([2, 1], 3)
    assert done.count == Count(
        rows=tuple(Judged.read(r) for r in json.loads(file.read_text())["rows"])
    )
    stage.run(subject(), replace(FEW, seed=7, checkpoints=1), file, console)
    assert asked == [2, 1, 1]
    with pytest.raises(FalseAlarmError, match="1 checks failed"):
        stage.check(done)
    file.write_text("{")
    assert len(stage.run(subject(), FEW, file, console).count.rows) == 3


def test_it_is_told_by_check_and_as_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = Count(rows=tuple(_one(each) for each in FEW.drawn()))
    done = stage.Counted(name="vllm 1", dtype="float32", count=count, file=tmp_path / "a.json")
    table = {row[0]: row for row in show_alarms.rows(count)}
    assert table["golden.fp32"][1:3] == ("9e-13", "1e-08")
    assert list(table) == [name for name in checks.CHECKS if name in table]
    show_alarms.told(done, Console(as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert (told["pairs"], told["rate-below"]) == (6, {"of-pairs": 0.5, "of-checkpoints": 1.0})
    assert "fewer than 50% of such pairs" in "\n".join(show_alarms.sentences(done))


def test_an_engine_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "alarms", "--of", "/no/such/python"])
    assert ended.value.code == 50


def test_the_nightly_asks_for_what_there_is(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "ci" / "nightly"
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text().replace("\\\n", " ")
    asked = re.findall(r"^ *dspatch ((?:[a-z]+ )+)(.*?)>", text, re.MULTILINE)
    assert [words.split()[-1] for words, _ in asked] == ["run", "run", "alarms"]
    for words, rest in asked:
        command: Any = cli
        for word in words.split():
            command = command.commands[word]
        known = {name for option in command.params for name in option.opts}
        assert set(re.findall(r"(?<= )--?[a-z-]+", f" {rest}")) <= known


def test_a_form_that_rounding_drowns_is_counted_and_judged_in_float32_alone() -> None:
    quiet = "deepseek-v3/quiet"
    assert quiet in small.counted("float32")
    assert {*small.counted("float32")} - {*small.counted("bfloat16")} == {quiet}
    assert {*small.counted("bfloat16")} - {*small.counted("float16")} == {"deepseek-v3/loud"}
    assert all(not c.name.startswith(quiet) for one in Plan(dtype="float16").drawn() for c in one)
    for dtype, judged in (("float32", True), ("bfloat16", False)):
        wanted = proving.Wanted(adversarial=True, dtype=dtype)
        assert (quiet in proving.models_of(wanted, ["deepseek-v3"])) is judged
    proving.need_dtype([quiet], "float32")
    with pytest.raises(NoToleranceError, match="quiet cannot be judged in bfloat16"):
        proving.need_dtype(["deepseek-v3", quiet], "bfloat16")
    with pytest.raises(NoToleranceError):
        stage.run(subject(), Plan(models=(quiet,), dtype="bfloat16"), Path("a"), Console())


@pytest.mark.parametrize(
    ("version", "dtype", "heads"),
    [("0.32.0+cpu", "float32", 4), ("0.25.1+cu130", "bfloat16", 16)],
    ids=["cpu", "cuda"],
)
def test_dtype_and_models_of_a_count_are_what_the_engine_was_built_for(
    version: str, dtype: str, heads: int
) -> None:
    of = subject(version)
    found = stage.settled(Plan(dtype=""), of)
    assert found.dtype == dtype
    cases = [case for one in found.drawn() for case in one]
    assert {case.config["num_attention_heads"] for case in cases} == {heads}
    # No kernel of a GPU takes heads of sizes that no published model has.
    odd = {case.config["kv_lora_rank"] for case in cases} != {512}
    assert odd is (of.target == "cpu")
    named = Plan(models=("deepseek-v3/odd-heads",), dtype="float16")
    assert stage.settled(named, of) == named
    assert stage.settled(Plan(dtype="")).dtype == "float32"
