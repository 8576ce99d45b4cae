"""In less than float32 checks judge what turned routers do not fail: typical tokens, or all by the engine's experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.bench import limits
from dspatch.bench.noise import Band
from dspatch.conformance import checks, diagnosis, page, selftest, statistic, tolerance
from dspatch.conformance.causes import unasked
from dspatch.conformance.checks.seen import Seen
from dspatch.conformance.diagnosis import Diagnosis
from dspatch.conformance.faults import FAULTS
from dspatch.conformance.report import Report
from dspatch.conformance.selftest import Planted
from tests.unit.test_conformance_checks import each, judged, place, prompt, seen
from tests.unit.test_conformance_faults import at

NUMBERS = st.lists(st.none() | st.floats(0, 1e6) | st.just(math.nan), max_size=60)


@given(NUMBERS)
def test_a_typical_value_is_bounded_by_the_worst_and_none_counts_as_the_worst(values: Any) -> None:
    worst = max(map(statistic.rank, values), default=math.inf)
    for found in (statistic.median(values), statistic.mean(values)):
        assert not math.isnan(found)
        assert found <= worst * (1 + 1e-9) or math.isinf(worst)
        # One token without a number is enough.
        assert math.isinf(found) == math.isinf(worst)


def test_a_row_of_one_measure_is_none_of_another() -> None:
    for check in statistic.NARROW:
        worst, typical = "nats", statistic.unit(check, "bfloat16", "nats")
        assert statistic.of(check, "float32", worst)
        assert statistic.of(check, "bfloat16", typical)
        assert not statistic.of(check, "bfloat16", worst)
        assert not statistic.of(check, "float32", typical)
    assert statistic.of("layers.local", "bfloat16", "nats")
    assert not statistic.of("layers.local", "bfloat16", "nats, median token")
    old = "nats, median token of the median prompt"
    assert not statistic.of("decode.paged", "bfloat16", old)


def test_what_is_measured_otherwise_in_every_dtype_refuses_old_rows_of_every_dtype() -> None:
    for dtype in ("float32", "bfloat16"):
        own = statistic.unit("sampling.distribution", dtype, "standard deviations")
        assert own == "standard deviations, by the engine's own logits"
        assert statistic.unit("sampling.distribution", dtype, own) == own
        assert statistic.of("sampling.distribution", dtype, own)
        assert not statistic.of("sampling.distribution", dtype, "standard deviations")


def test_a_calibration_starts_anew_where_the_row_was_of_another_measure() -> None:
    key = ("golden.fp32", "bfloat16", "cpu")
    stale = replace(tolerance.table()[key], unit="relative difference", noise=0.5, fault=1e-9)
    band = Band(key=key, noise=1e-4, noise_at="", fault=2e-3, unit="relative difference")
    found = limits.row(band, {**tolerance.table(), key: stale}, of="e", date="2026-11-30")
    assert found is not None
    assert (found.new.noise, found.new.fault) == (1e-4, 2e-3)
    assert found.new.unit == "relative difference, median token"


def test_a_check_without_a_row_gets_its_first_one_from_what_it_measured() -> None:
    band = Band(key=("layers.new", "float32", "cpu"), noise=1e-4, noise_at="", fault=1, unit="u")
    found = limits.row(band, {}, of="e", date="2026-11-30")
    assert found is not None
    assert (found.new.value, found.new.unit, found.verdict) == (0.01, "u", "new")


def test_another_measure_than_float32_s_starts_from_its_own_unit() -> None:
    band = Band(
        key=("golden.routes", "bfloat16", "card"),
        noise=0,
        noise_at="",
        fault=0.2,
        unit="of a score",
    )
    found = limits.row(band, tolerance.table(), of="e", date="2026-11-30")
    assert found is not None
    assert (found.new.unit, found.new.value) == (
        "of a score, worst choice, text and experts followed",
        0.02,
    )


def test_an_old_row_of_ones_own_is_told_of_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("golden.fp32", "bfloat16", "cpu")
    old = tolerance.table()[key]
    stale = replace(old, unit="relative difference", reason="of the worst token")
    monkeypatch.setattr(tolerance, "table", lambda: {key: stale})
    found = judged("golden.fp32", seen(dtype="bfloat16"))
    assert found.status == "fail"
    without = page.as_html(Report(results=(found,), facts={}), "an engine")
    assert stale.reason not in without
    monkeypatch.setattr(tolerance, "table", lambda: {key: replace(stale, unit=old.unit)})
    assert stale.reason in page.as_html(Report(results=(found,), facts={}), "an engine")
    assert "no tolerance for golden.fp32 in bfloat16 on cpu that is of what" in found.note


def narrow(**changes: Any) -> Seen:
    """What a sound engine gives in bfloat16: some tokens went to other experts."""
    runs = {
        f"{run}/": {name: turned(**changes) for name in ("short", "long")}
        for run in ("alone", "together", "again", "late", "scored")
    }
    drawn = changes.get("selfkl", spread(4e-5)[:40])
    asked = {**seen().measures["probes"], "selfkl/": {"selfkl": drawn}}
    facts = {**seen().facts, "reads_apart": True}
    return seen(
        dtype="bfloat16", facts=facts, measures={**seen().measures, "runs": runs, "probes": asked}
    )


def turned(**changes: Any) -> dict[str, Any]:
    values = {name: spread(1e-4) for name in ("logits", "layer.0", "layer.1", "layer.2", "final")}
    values |= {name: spread(0.04) for name in ("logprob", "best")}
    # Whoever follows the engine meets no turned router.
    values |= {"followed": [0.04] * 311, "divergence": spread(1e-4)}
    own = {name: value for name, value in changes.items() if name not in ("selfkl", "experts")}
    known = each(**{**values, "margin": spread(0.0, 0.6), **own})
    worst = {"prefill_rel": 0.01, "decode_rel": 0.02, "prefill_logprob": 2.0, "decode_logprob": 1.5}
    rope = changes.get("rope", 1.0)
    inside = {"0.rope": place(each=[1.0, rope], off=[] if rope < 10 else [16], own=True)}
    return prompt(
        experts=changes.get("experts", [[1, 0.004, 9, 311], [2, 0.002, 9, 311]]),
        routes=[[1, 20, 311], [2, 30, 311]],
        **{**worst, "worst_missed_margin": 0.9, "best": 0.5, "argmax_missed": 9, "each": known},
        divergence=0.02,
        repeated=0.3,
        agreed_steps=4,
        places={"rows": [0, 16], "found": inside, "unobserved": []},
    )


def spread(usual: float, worst: float = 2.0) -> list[float]:
    """One token in thirty is far off."""
    return [worst if number % 30 == 29 else usual for number in range(311)]


@pytest.mark.parametrize("name", sorted(statistic.NARROW))
def test_turned_routers_fail_no_check_that_looks_past_them(name: str) -> None:
    assert judged(name, narrow()).status == "pass"


def one(at: int) -> dict[str, Any]:
    """One token of 311 is wrong, beside a model that goes the engine's ways."""
    return {"followed": [0.04] * at + [2.0] + [0.04] * (310 - at)}


WRONG: dict[str, dict[str, Any]] = {
    "golden.fp32": {"layer.1": spread(1.5e-3)},
    "golden.routes": {"experts": [[1, 0.004, 9, 311], [2, 0.3, 1, 311]]},
    "layers.inside": {"rope": 500.0},
    "logits.kl": {"divergence": spread(2e-3)},
    "logits.topk": {"best": spread(0.9)},
    "greedy.forced": {"margin": [0.0, 0.8] * 155},
    "decode.paged": one(305),
    "decode.late": one(100),
    "inv.selfkl": {"selfkl": [4e-5] * 19 + [0.1] * 21},
    "decode.scored": one(300),
    "prefill.chunked": one(200),
    "prefix.hit": one(310),
    "batch.mixed": one(0),
}


@pytest.mark.parametrize("name", sorted(statistic.NARROW))
def test_what_turned_routers_do_not_hide_fails(name: str) -> None:
    assert judged(name, narrow(**WRONG[name])).status == "fail"


@pytest.mark.parametrize("name", sorted(statistic.NARROW))
def test_a_token_without_a_number_fails(name: str) -> None:
    nothing: dict[str, Any] = {
        key: [math.nan] * 311 for key in each() if key not in ("read", "first")
    }
    experts = [[1, math.nan, 9, 311], [2, 0.0, 0, 311]]
    broken = narrow(**nothing, rope=math.nan, selfkl=[1e-5] * 39 + [math.nan], experts=experts)
    assert judged(name, broken).status == "fail"


@pytest.mark.parametrize(
    "name", sorted(c for c, end in statistic.NARROW.items() if end == statistic.FOLLOWED)
)
def test_an_engine_whose_routers_cannot_be_watched_cannot_be_followed(name: str) -> None:
    found = judged(name, narrow(followed=[]))
    assert (found.status, "routers could not be watched" in found.note) == ("not-shown", True)


@pytest.mark.parametrize("name", sorted(statistic.BY_ANSWERS))
@pytest.mark.parametrize(
    ("followed", "why"),
    [([0.04] * 311, "own experts alone"), ([], "routers could not be watched")],
    ids=["a router wrong in this run alone", "tokens read that were not given"],
)
def test_what_following_does_not_see_fails_by_a_typical_token(
    name: str, followed: list[float], why: str
) -> None:
    found = judged(name, narrow(followed=followed, logprob=spread(2.5)))
    assert (found.status, found.measured) == ("fail", 2.5)
    assert f"{why}; the typical token" in found.note


def test_a_few_tokens_are_no_typical_ones() -> None:
    short = narrow(logprob=[0.04] * 299 + [2.5] * 2)  # the texts part at their second token
    assert judged("prefix.hit", short).status == "pass"


def test_before_the_second_chunk_no_token_is_one_of_chunks() -> None:
    assert judged("prefill.chunked", narrow(**one(100))).status == "pass"
    assert judged("decode.paged", narrow(**one(299))).status == "pass"


def test_a_diagnosis_goes_by_the_engines_own_inputs_and_turned_routers_are_no_place() -> None:
    found = [judged("golden.fp32", narrow(**WRONG["golden.fp32"]))]
    sound = diagnosis.diagnose(narrow(), found, unasked)
    assert sound is None
    wrong = diagnosis.diagnose(narrow(rope=500.0), found, unasked)
    assert wrong is not None
    assert wrong.symptom.place == "0.rope"


def test_one_token_is_enough_where_no_error_of_another_operation_is_in_it() -> None:
    of = narrow()
    entry = of.measures["runs"]["alone/"]["short"]["places"]["found"]["0.rope"]
    assert judged("layers.inside", of).status == "pass"
    entry |= {"each": [*entry["each"], 500.0], "off": [16]}
    assert judged("layers.inside", of).status == "fail"


@pytest.mark.parametrize("run", ["alone", "together", "again", "late"])
def test_a_router_that_is_wrong_in_one_run_only_is_seen(run: str) -> None:
    of, wrong = narrow(), narrow(**WRONG["golden.routes"])
    runs = {**of.measures["runs"], f"{run}/": wrong.measures["runs"][f"{run}/"]}
    found = judged("golden.routes", replace(of, measures={**of.measures, "runs": runs}))
    assert (found.status, found.measured) == ("fail", 0.3)
    assert f"layer.2 of `short`, {run}" in found.note


def test_a_router_is_told_by_its_worst_choice_and_not_by_the_few_that_were_kept() -> None:
    found = [judged("golden.fp32", narrow(**WRONG["golden.fp32"]))]
    for missed, where in ((0.3, "1.router_choice"), (0.004, None)):
        of = narrow(experts=[[1, missed, 9, 311], [2, 0.0, 0, 311]])
        for measures in of.measures["runs"]["alone/"].values():
            choice = {"relative": 0.1, "off": [16]}
            kept = {"rows": [16 * n for n in range(10)], "found": {"1.router_choice": choice}}
            measures["places"] = {**kept, "unobserved": []}
        told = diagnosis.diagnose(of, found, unasked)
        assert (told and told.symptom.place) == where


def test_what_is_held_against_the_oracle_is_no_operation_by_its_own_input() -> None:
    """As of an engine that shows nothing inside: its layers and logits have the errors of all before them."""
    of = narrow()
    for measures in of.measures["runs"]["alone/"].values():
        measures["places"]["found"] = {"head": place(each=[0.1, 0.1], off=[0, 16])}
    assert judged("layers.inside", of).status == "not-shown"
    found = [judged("golden.fp32", narrow(**WRONG["golden.fp32"]))]
    assert diagnosis.diagnose(of, found, unasked) is None
    for measures in of.measures["runs"]["alone/"].values():
        measures["each"]["logits"] = spread(1.5e-3)
    told = diagnosis.diagnose(of, found, unasked)
    assert told is not None
    assert told.symptom.place == "head"


def test_a_router_is_wrong_by_one_token_that_its_own_logits_send_elsewhere() -> None:
    found = [judged("golden.fp32", narrow(**WRONG["golden.fp32"]))]
    for off, where in (([16], "1.router_choice"), ([], None)):
        of = narrow()
        for measures in of.measures["runs"]["alone/"].values():
            measures["routes"] = [[1, 100, 311], [2, 0, 311]]
            choice = {"relative": 0.1, "off": off, "own": True}
            kept = {"rows": [0, 16], "found": {"1.router_choice": choice}}
            measures["places"] = {**kept, "unobserved": []}
        told = diagnosis.diagnose(of, found, unasked)
        assert (told and told.symptom.place) == where


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("check", ["decode.paged", "golden.fp32"])
@pytest.mark.parametrize("place", ["", "2.experts"])
def test_a_fault_that_is_told_elsewhere_than_where_it_is_planted_is_misplaced(
    dtype: str, check: str, place: str
) -> None:
    fault = next(one for one in FAULTS if one.caught_by == check)
    failed = replace(judged(check, seen()), dtype=dtype, status="fail")
    found = Diagnosis(variant="m", symptom=at(place), causes=()) if place else None
    one = Planted(fault=fault, variant="m", results=(failed,), diagnosis=found, dtype=dtype)
    assert one.misplaced
    right = Diagnosis(variant="m", symptom=at(fault.at[0]), causes=())
    assert not replace(one, diagnosis=right).misplaced


def test_no_noise_in_less_than_float32_is_not_held_against_float32_s_limit() -> None:
    known = tolerance.table()
    before = known["inv.selfkl", "float32", "cpu"]
    for dtype, value in (("float32", before.value), ("bfloat16", 0.017)):
        band = Band(key=("inv.selfkl", dtype, "other"), noise=0, noise_at="", fault=0.17)
        found = limits.row(band, known, of="e", date="2026-11-30")
        assert found is not None
        assert found.new.value == value


def test_checks_that_judge_a_typical_token_are_checks() -> None:
    assert set(statistic.NARROW) <= set(checks.CHECKS)
    judged_runs = {name for names in selftest.RUN_CHECKS.values() for name in names}
    assert set(statistic.NARROW) <= judged_runs
