"""The first wrong place is named, with what nobody saw before it, and causes by what speaks for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import series
from dspatch.audit import finding
from dspatch.conformance import causes, checks, diagnosis, faults, small, sources, symptom
from dspatch.conformance.causes import Rule, Standing
from dspatch.conformance.checks.seen import Seen
from dspatch.conformance.report import CheckResult
from dspatch.engines.workers.vllm_worker import places as watching
from tests.unit.test_conformance_checks import CONFIG, prompt, seen

BAND = 1e-8
KEPT = [0, 1, 2, 3, 16, 128, 144, 256, 300, 301, 302]
OPERATIONS = [
    *("0.input_norm", "0.q_a", "0.query", "0.kv_a", "0.kv_a_norm", "0.rope", "0.attention"),
    *("0.o_proj", "0.post_norm", "0.mlp", "1.input_norm", "1.rope", "1.attention"),
    *("1.router_choice", "1.router_weight", "1.shared_expert", "1.experts", "final_norm"),
]


def entry(off: Iterable[int] = (), **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"relative": 0.1 if off else 1e-13, "off": list(off)}
    if off:
        values = {"expected": ["1", "2"], "got": ["3", "4"], "columns": [2, 8], "column": 0}
        found |= {"manner": "other", "factor": None, "position": found["off"][0], **values}
    return {**found, **more}


def measured(
    wrong: dict[str, dict[str, Any]], unobserved: Iterable[str] = (), **more: Any
) -> dict[str, Any]:
    hidden = list(unobserved)
    found = {name: wrong.get(name, entry()) for name in OPERATIONS if name not in hidden}
    return prompt(places={"rows": KEPT, "found": found, "unobserved": hidden}, **more)


def of(run: str = "alone", facts: dict[str, Any] | None = None, **prompts: Any) -> Seen:
    clean = seen()
    runs = {**clean.measures["runs"], f"{run}/": prompts}
    return replace(clean, measures={**clean.measures, "runs": runs}, facts=facts or clean.facts)


def place(one: Seen) -> str:
    found = symptom.find(one, BAND)
    return found.place if found else ""


def test_nothing_is_wrong_with_a_healthy_engine() -> None:
    assert symptom.find(seen(), BAND) is None
    assert symptom.find(of(long=measured({})), BAND) is None


@given(st.sets(st.sampled_from(OPERATIONS), min_size=1))
def test_the_first_wrong_operation_of_the_model_is_named(names: set[str]) -> None:
    wrong = {name: entry([3]) for name in names}
    first = next(name for name in OPERATIONS if name in names)
    assert place(of(long=measured(wrong))) == first


def test_the_first_over_all_prompts_counts() -> None:
    late, early = measured({"1.rope": entry([1])}), measured({"0.query": entry([256])})
    found = symptom.find(of(a=late, b=early), BAND)
    assert found is not None
    assert (found.place, found.prompt, found.position) == ("0.query", "b", 256)


def test_what_nobody_saw_before_it_is_told_and_no_more() -> None:
    hidden = ["0.input_norm", "0.kv_a_norm", "0.rope", "1.rope"]
    found = symptom.find(of(long=measured({"0.attention": entry([1])}, hidden)), BAND)
    assert found is not None
    assert found.unobserved == ("0.kv_a_norm", "0.rope")
    told = diagnosis.Diagnosis(variant="v", symptom=found, causes=()).lines()
    assert "not observed, so it may lie there: 0.kv_a_norm, 0.rope" in told[-1]


def test_an_engine_that_nobody_can_look_into_is_told_by_its_layers() -> None:
    layers = [["layer.0", 1e-13], ["layer.1", 0.2], ["layer.2", 0.3], ["final", 0.3]]
    one = of(long=measured({}, OPERATIONS, layers=layers))
    found = symptom.find(one, BAND)
    assert found is not None
    assert found.place == "1.layer"
    assert "1.rope" in found.unobserved
    assert "0.rope" in found.unobserved  # its layer's sum is no place of its own


def test_logits_alone_are_the_head() -> None:
    assert place(of(long=measured({}, prefill_rel=0.1))) == "head"
    assert place(of(long=measured({}, decode_rel=float("nan")))) == "head"


def test_a_layer_that_is_right_where_it_was_kept_may_be_wrong_elsewhere() -> None:
    kept = {**measured({})["places"]["found"], "1.layer": entry(), "head": entry()}
    layers = [["layer.0", 1e-13], ["layer.1", 0.2]]
    one = prompt(places={"rows": KEPT, "found": kept, "unobserved": []}, layers=layers)
    assert place(of(long=one)) == "1.layer"
    shown = {**kept, "1.layer": entry([3])}
    found = symptom.find(of(long={**one, "places": {**one["places"], "found": shown}}), BAND)
    assert found is not None
    assert (found.place, found.expected) == ("1.layer", ("1", "2"))


ROWS = {
    "every": KEPT,
    "not-first": KEPT[1:],
    "later-chunk": [p for p in KEPT if p >= 128],
    "generated": [301, 302],
    "some": [3, 16],
}


@pytest.mark.parametrize("rows", ROWS)
def test_which_positions_are_wrong(rows: str) -> None:
    found = symptom.find(of(long=measured({"0.attention": entry(ROWS[rows])})), BAND)
    assert found is not None
    assert found.rows == rows
    assert diagnosis.ROWS[rows] in diagnosis.where(found)


@pytest.mark.parametrize("run", ["again", "together"])
def test_a_run_that_alone_is_wrong(run: str) -> None:
    one = of(run, long=measured({"0.attention": entry([256])}))
    found = symptom.find(one, BAND)
    assert found is not None
    assert found.run == run
    first = causes.rank(found, CONFIG, checks.judge(one), causes.unasked)[0]
    assert first.check == {"again": "prefix.hit", "together": "batch.mixed"}[run]


@pytest.mark.parametrize(
    ("error", "where", "text"),
    [
        ("KeyError: 'layers.1.mlp.gate.e_score_correction_bias'", "1.router_choice", "topk_method"),
        ("KeyError: 'model.layers.0.self_attn.kv_b_proj.weight'", "0.attention", "no parameter"),
        ("NotImplementedError: MLA is not supported on CPU.", "", "refuses every model"),
        ("the process died after `alone`: killed by SIGSEGV; …", "", "kernel crashed"),
        ("ValueError: something else", "", "refuses the model"),
    ],
)
def test_a_start_that_fails(error: str, where: str, text: str) -> None:
    one = replace(seen(), facts={"error": error})
    results = checks.refused(one, error)
    found = diagnosis.diagnose(one, results, causes.unasked)
    assert found is not None
    assert found.symptom.place == where
    assert text in found.causes[0].text
    assert error in found.lines()[0]


@pytest.mark.parametrize("key", ["missing", "unfilled", "differing"])
def test_wrong_weights_come_before_what_they_compute(key: str) -> None:
    names = [
        "model.layers.2.mlp.experts.3.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
    ]
    one = of(long=measured({"0.rope": entry([1])}))
    weights = {**one.measures["weights"], key: names}
    found = symptom.find(replace(one, measures={**one.measures, "weights": weights}), BAND)
    assert found is not None
    assert (found.kind, found.place) == ("weights", "1.input_norm")
    assert "and 1 more" in found.detail


def test_every_tensor_of_a_model_belongs_to_an_operation() -> None:
    tensors = causes.knowledge().tensors
    for name in (
        "model.embed_tokens.weight", "model.layers.0.self_attn.q_b_proj.weight", "lm_head.weight",
        "model.layers.1.mlp.experts.7.up_proj.weight", "model.norm.weight",
        "model.layers.1.mlp.shared_experts.up_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.experts.w13_weight", "model.layers.1.mlp.gate.weight",
    ):  # fmt: skip
        assert any(re.search(pattern, name) for pattern in tensors), name
    assert (
        symptom._of_tensor("model.layers.1.mlp.shared_experts.up_proj.weight")[1] == "shared_expert"
    )
    assert symptom._of_tensor("model.layers.1.mlp.experts.7.up_proj.weight")[1] == "experts"


def confirmed(name: str) -> tuple[Standing, str]:
    return ("confirmed", "file.py:1") if name == "vllm-cpu-rope-strides" else ("ruled out", "")


def test_what_speaks_for_a_cause_ranks_it() -> None:
    one = replace(of(long=measured({"0.rope": entry(KEPT[1:])})), config=PLAIN)
    found = symptom.find(one, BAND)
    assert found is not None
    ranked = causes.rank(found, PLAIN, checks.judge(one), confirmed)
    assert ranked[0].finding == "vllm-cpu-rope-strides"
    assert (ranked[0].standing, "file.py:1" in ranked[0].confirm) == ("confirmed", True)
    standings = [causes.STANDINGS.index(cause.standing) for cause in ranked]
    assert standings == sorted(standings)


BY_DTYPE = "lmdeploy-turbomind-experts-by-checkpoint"


def test_a_layout_by_the_checkpoint_s_dtype_is_named_for_checkpoints_in_float32_alone() -> None:
    def ask(name: str) -> tuple[Standing, str]:
        return ("confirmed", "ffn.py:115") if name == BY_DTYPE else ("ruled out", "")

    found = symptom.Symptom(kind="run", layer=None, operation="head", rows="some", run="alone")
    told = causes.rank(found, small.case("deepseek-v2-lite/sixteen-heads").config, [], ask)
    assert (told[0].finding, told[0].standing) == (BY_DTYPE, "confirmed")
    narrow = small.case("deepseek-v2-lite/sixteen-heads/bfloat16").config
    assert BY_DTYPE not in {each.finding for each in causes.rank(found, narrow, [], ask)}


def test_a_finding_of_another_engine_is_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_open", lambda *given: (None, {}, {}))
    ask = sources.asked_of(Path("python"), "vllm")
    assert ask(BY_DTYPE) == ("ruled out", "it is none of vllm's")


PLAIN = small.case("deepseek-v3/plain-rope").config


@pytest.mark.parametrize(
    ("status", "standing"), [("fail", "confirmed"), ("pass", "ruled out"), ("not-shown", "open")]
)
def test_a_check_that_was_run_confirms_or_rules_out(status: str, standing: str) -> None:
    found = symptom.find(of(long=measured({"0.query": entry(KEPT)})), BAND)
    assert found is not None
    result = CheckResult(check="weights.values", variant="v", dtype="float32", status=status)  # type: ignore[arg-type]
    ranked = causes.rank(found, CONFIG, [result], causes.unasked)
    assert next(c for c in ranked if c.check == "weights.values").standing == standing


def test_a_model_that_passed_has_no_diagnosis() -> None:
    passed = [CheckResult(check="golden.fp32", variant="v", dtype="float32", status="pass")]
    assert diagnosis.diagnose(of(long=measured({"0.rope": entry([1])})), passed, confirmed) is None


RULES = causes.knowledge().rules


@pytest.mark.parametrize("rule", RULES, ids=[rule.text[:40] for rule in RULES])
def test_every_cause_rests_on_what_exists(rule: Rule) -> None:
    assert set(rule.at) <= causes.knowledge().places.keys()
    assert set(rule.kind) <= set(get_args(symptom.Kind))
    assert rule.kind
    assert set(rule.rows) <= diagnosis.ROWS.keys()
    assert set(rule.run) <= set(symptom.RUNS)
    assert set(rule.manner) <= {"zero", "factor", "order", "not-finite", "other"}
    assert set(rule.needs) <= faults.FEATURES.keys()
    assert not rule.check or rule.check in checks.CHECKS
    re.compile(rule.error)
    assert rule.check or rule.finding or rule.how


def test_every_finding_that_a_cause_names_is_one() -> None:
    every = (finding.load_all(one, series.layered(one).traits) for one in finding.engines())
    known = {each.id for of_one in every for each in of_one}
    assert {rule.finding for rule in RULES if rule.finding} <= known


@pytest.mark.parametrize("operation", list(causes.knowledge().places))
def test_every_operation_has_a_cause(operation: str) -> None:
    found = symptom.Symptom(kind="run", layer=1, operation=operation, rows="every", run="alone")
    assert causes.rank(found, CONFIG, (), causes.unasked)


class Module:
    """A module that can be hooked, and has others."""

    def __init__(self, **below: object) -> None:
        vars(self).update(below)

    def register_forward_hook(self, hook: object) -> None:
        raise AssertionError(hook)


def test_an_operation_without_a_module_stays_unobserved() -> None:
    inner = Module(q_b_proj=None, q_proj=(projection := Module()), o_proj="no module")
    layer = Module(self_attn=inner)
    assert watching._find(layer, watching.OUTPUTS["query"]) is projection
    assert watching._find(layer, ("self_attn.o_proj",)) is None
    assert watching._find(layer, ("mlp.gate",)) is None


class Rows:
    """Stands for a tensor of this many rows."""

    def __init__(self, rows: int) -> None:
        self.shape = (rows,)


def test_a_row_is_not_taken_for_one_of_a_text_that_has_the_same_token_there() -> None:
    rows = watching.Rows()
    rows.add("odd", [5, 6, 7], [0, 2])
    # Nothing is kept of its third position, and yet it has the token that the other has there.
    rows.add("long", [9, 8, 7, 4], [0, 3])
    assert (rows.find((2, 7)), rows.find((0, 5)), rows.find((3, 4))) == (
        None,
        ("odd", 0),
        ("long", 1),
    )
    rows.alone = "long"
    assert (rows.find((2, 7)), rows.find((3, 4))) == (None, ("long", 1))
    rows.alone = "odd"
    assert (rows.find((2, 7)), rows.find((3, 4)), rows.find((1, 6))) == (("odd", 1), None, None)


def test_a_row_that_two_texts_of_a_batch_came_to_is_neither_s() -> None:
    kept = watching.Kept()
    kept.add("odd", [5, 6, 7, 9], [0, 2, 3])
    kept.add("long", [9, 8, 4, 2], [0])
    kept.begin([(0, 5), (2, 7), (0, 9)])
    # The long text goes on like the odd one, which has been there.
    kept.begin([(2, 7)])
    assert kept.known("odd") == [True, False, False]
    assert kept.known("long") == [True]
    kept.rows.alone = "odd"
    kept.begin([(0, 5)])
    assert kept.known("odd") == [True, False, False]


@pytest.mark.parametrize("value", [None, "no tensor", Rows(3), Rows(0)])
def test_what_has_another_form_stays_unobserved_and_stops_nothing(value: object) -> None:
    places = object.__new__(watching.Places)
    places.kept, places.context = watching.Kept(), watching.Kept()
    places.kept.index, places.taken, places.tokens, places.layer = [0], set(), Rows(2), 0
    places.take("0.rope", value)
    places.read("key", value)
    assert places.kept.parts == places.context.parts == {}
    places.tokens = places.embedded = None
    places.begin(Rows(2))
    assert places.kept.index == []


def test_an_input_may_come_by_name_or_not_at_all() -> None:
    assert watching._input((1, 2), {}) == 1
    assert watching._input((), {"input_": 3}) == 3
    assert watching._input((), {}) is None


def test_rules_state_nothing_that_nobody_reads() -> None:
    stated = set(causes.CONDITIONS) | {"error", "check", "finding", "how", "text"}
    assert stated == {field.name for field in fields(Rule)}


def test_the_stream_is_what_a_layer_adds_to_and_what_is_added() -> None:
    class Number(float):
        def float(self) -> float:
            return float(self)

    assert watching._stream() is None
    assert watching._stream(2.0) == 2.0
    assert watching._stream(Number(2.0), Number(3.0)) == 5.0
