"""The catalogue of planted faults fits the checks, the models and the engine's worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dspatch.conformance import causes, checks, faults, quantised, render, selftest, small
from dspatch.conformance.checks.seen import PROBES
from dspatch.conformance.diagnosis import Diagnosis
from dspatch.conformance.report import CheckResult, Report, Status
from dspatch.conformance.selftest import Planted, Selftest
from dspatch.conformance.symptom import Symptom
from dspatch.engines.workers.lmdeploy_worker import faults as outside
from dspatch.engines.workers.lmdeploy_worker import spoiled
from dspatch.engines.workers.vllm_worker import faults as planting


def test_every_fault_names_a_check_that_judges_its_run() -> None:
    for fault in faults.FAULTS:
        judged = selftest.LOAD_CHECKS if fault.kind == "load" else selftest.RUN_CHECKS[fault.run]
        assert fault.caught_by in judged


def test_every_check_that_runs_an_engine_has_a_fault_that_it_must_catch() -> None:
    # The oracle's sanity and the cache's layout have theirs in tests of their own.
    named = {fault.caught_by for fault in faults.FAULTS}
    assert named == set(checks.CHECKS) - {"oracle.sane", "cache.latent"}


def test_the_worker_can_plant_every_hook_fault_and_no_other() -> None:
    hooks = [fault for fault in faults.FAULTS if fault.kind == "hook"]
    apart = {fault.plants for fault in hooks if fault.caught_by in checks.READS_APART}
    assert {fault.plants for fault in hooks} - apart == set(planting.HOOKS)
    assert apart < set(outside.HOOKS) <= {fault.plants for fault in hooks}


def test_faults_that_take_a_start_are_those_that_a_checkpoint_or_a_setting_can_have() -> None:
    known = {*spoiled.WEIGHED, *spoiled.CONFIGURED, *spoiled.SETTINGS}
    assert {fault.name for fault in faults.FAULTS if fault.kind == "start"} == known


def test_a_fault_has_one_name() -> None:
    names = [fault.name for fault in faults.FAULTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3.2"]
)
def test_faults_fit_the_models_that_have_the_feature(name: str) -> None:
    fitting = {fault.name for fault in faults.fitting("hook", small.case(name).config)}
    assert ("router-bias-ignored" in fitting) == (name in ("deepseek-v3", "deepseek-v3.2"))
    assert ("indexer-rope-interleaved" in fitting) == (name == "deepseek-v3.2")
    assert ("group-limit-ignored" in fitting) == (name != "deepseek-v2-lite")
    assert ("q_a-kv_a-swapped" in fitting) == (name != "deepseek-v2-lite")
    assert "wrong-softmax-scale" in fitting


@pytest.mark.parametrize("form", ["", "/passkey", *(f"/{form}" for form in quantised.FORMS)])
def test_no_fault_is_planted_for_a_check_that_the_model_is_not_held_to(form: str) -> None:
    config = small.case(f"deepseek-v3{form}").features
    planted = [
        fault for kind in ("hook", "load", "start") for fault in faults.fitting(kind, config)
    ]
    assert planted
    for fault in planted:
        named = checks.fitting(config, [fault.caught_by], reads_apart=True)
        assert named == [fault.caught_by], fault.name


def test_a_model_without_yarn_cannot_lose_its_scale() -> None:
    config = small.case("deepseek-v3/plain-rope").config
    names = {fault.name for fault in faults.fitting("hook", config)}
    assert "wrong-softmax-scale" not in names


def test_faults_of_loading_touch_different_tensors() -> None:
    touched = [name for fault in faults.FAULTS for name in fault.tensors]
    assert len(touched) == len(set(touched)) > 0


def test_spoiling_drops_swaps_and_leaves_the_rest() -> None:
    stream = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    plants = [{"drop": ["a"]}, {"swap": ["b", "c"]}]
    assert list(planting.spoiled(stream, plants)) == [("c", 2), ("b", 3), ("d", 4)]


def planted(status: Status, place: str = "1.q_a_norm") -> Planted:
    fault = next(fault for fault in faults.FAULTS if fault.caught_by == "golden.fp32")
    result = CheckResult(check="golden.fp32", variant="deepseek-v3", dtype="float32", status=status)
    found = Diagnosis(variant="deepseek-v3", symptom=at(place), causes=())
    return Planted(fault=fault, variant="deepseek-v3", results=(result,), diagnosis=found)


def at(place: str) -> Symptom:
    layer, _, operation = place.rpartition(".")
    return Symptom(kind="run", layer=int(layer), operation=operation)


def clean(status: Status = "pass") -> Report:
    result = CheckResult(check="golden.fp32", variant="deepseek-v3", dtype="float32", status=status)
    return Report(results=(result,), facts={})


def test_a_missed_fault_fails_the_self_test() -> None:
    assert Selftest(clean=clean(), planted=(planted("fail"),)).ok
    assert not Selftest(clean=clean(), planted=(planted("fail"), planted("pass"))).ok


def test_a_fault_that_is_found_elsewhere_fails_the_self_test() -> None:
    assert planted("fail", "1.q_a").misplaced
    assert not Selftest(clean=clean(), planted=(planted("fail", "1.q_a"),)).ok
    assert planted("fail").found_at in planted("fail").fault.at


def test_every_fault_says_where_it_is_planted() -> None:
    places = causes.knowledge().places
    for fault in faults.FAULTS:
        assert fault.at
        if fault.run in PROBES or fault.kind == "start" or fault.name == "runner-up-picked":
            # An engine of which only answers are seen has no places, a run that asks one thing no further one, and
            # who picks a token is none.
            assert fault.at == ("",)
            continue
        assert {place.rpartition(".")[2] for place in fault.at} <= places.keys()


def test_a_clean_run_that_fails_fails_the_self_test() -> None:
    assert not Selftest(clean=clean("fail"), planted=(planted("fail"),)).ok


def test_a_self_test_that_caught_nothing_is_not_green() -> None:
    assert not Selftest(clean=clean(), planted=(planted("not-shown"),)).ok


def test_a_fault_that_could_not_be_planted_says_why() -> None:
    one = replace(planted("fail"), results=(), refused="nothing in this engine has `topk_group`")
    assert one.outcome == "not-shown"
    rows = Selftest(clean=clean(), planted=(one,)).as_dict()["faults"]
    assert rows[0]["refused"].endswith("`topk_group`")


def test_the_terminal_has_a_line_a_fault_that_says_what_saw_it() -> None:
    both = Selftest(clean=clean(), planted=(planted("fail"), planted("pass")))
    caught, missed = selftest.rows(both)
    fault = both.planted[0].fault
    assert caught[1:3] == (fault.name, "caught")
    assert caught[-1] == fault.caught_by
    assert (missed[2], missed[-1]) == ("missed", "")
    more = replace(both.planted[0].results[0], check="another")
    one = replace(both.planted[0], results=(*both.planted[0].results, more))
    assert selftest.rows(replace(both, planted=(one,)))[0][-1] == f"{fault.caught_by} and 1 more"


def test_what_other_rules_see_is_counted_beside_ours() -> None:
    seen_by_one = replace(planted("fail"), rules={"vllm": True, "sglang": False})
    loaded = replace(planted("fail"), rules={})
    found = Selftest(clean=clean(), planted=(seen_by_one, loaded))
    assert selftest.power(found) == {
        "our checks": (1, 1),
        "vLLM's rule": (0, 1),
        "SGLang's rule": (1, 1),
    }
    text = render.as_markdown(found.clean, found)
    assert "our checks 1 of 1, vLLM's rule 0 of 1, SGLang's rule 1 of 1" in text
    assert selftest.passes(loaded, "vllm") == ""
