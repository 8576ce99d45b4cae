"""Each check passes what is right and catches what its planted fault does to the measures."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dspatch.conformance import checks, faults, passkey, selftest, small, suite
from dspatch.conformance.checks.seen import Seen
from dspatch.conformance.report import CheckResult

# The one model that every check has something to say of.
CONFIG = small.case("deepseek-v3.2").config
# Those that it has; the checks of quantised weights are tested by themselves.
NAMES = checks.fitting(CONFIG)
EVERY = [*NAMES, "longctx.passkey"]


def each(**changes: Any) -> dict[str, Any]:
    """What is known of every token."""
    clean: dict[str, Any] = {"read": 299, "first": 0}
    clean |= {name: [5e-6] * 311 for name in ("logits", "logprob", "best", "divergence")}
    clean |= {name: [1e-13] * 311 for name in ("layer.0", "layer.1", "layer.2", "final")}
    return {**clean, "margin": [0.0] * 311, "followed": [5e-6] * 311, **changes}


def place(**changes: Any) -> dict[str, Any]:
    return {"relative": 2e-13, "each": [1e-13, 2e-13], "off": [], **changes}


def prompt(**changes: Any) -> dict[str, Any]:
    clean: dict[str, Any] = {
        "tokens": 300,
        "steps": 12,
        "agreed_steps": 12,
        "prefill_rel": 9e-13,
        "decode_rel": 8e-13,
        "prefill_logprob": 7e-6,
        "decode_logprob": 5e-6,
        "first_step_logprob": 5e-6,
        "argmax_missed": 0,
        "worst_missed_margin": 0.0,
        "unchosen": 0.0,
        "finite": True,
        "divergence": 1e-12,
        "best": 4e-6,
        "repeated": 0.0,
        "expected_repeated": 0.0,
        "layers": [["layer.0", 1e-14], ["layer.1", 2e-13], ["layer.2", 5e-13], ["final", 7e-13]],
        "routes": [[1, 0, 311], [2, 0, 311]],
        "experts": [[1, 0.0, 0, 311], [2, 0.0, 0, 311]],
        "choices": [[layer, 0.0, 0, 311] for layer in range(3)],
        "each": each(),
        "places": {"rows": [0, 16], "found": {"0.rope": place()}, "unobserved": []},
        "forwards": [128, 128, 44, *([1] * 11)],
        "cached": 288,
    }
    return {**clean, **changes}


def probes(**changes: Any) -> dict[str, Any]:
    """What each probe gave, by the run that it is."""
    clean: dict[str, Any] = {
        "local": [["long", layer, 5e-13, 300, 300] for layer in range(3)],
        "ladder": [[layer, 3e-13, 2e-13] for layer in range(3)],
        "replayed": [["layer.0", 1e-13, 77], ["logits", 8e-13, 77]],
        "routed": [["below", layer, 2e-7, 295, 300, True] for layer in (1, 2)],
        "turned": [[0, 0.0], [5119, 3e-10]],
        "sampled": {
            "deviation": -0.8,
            "repeated": True,
            "varied": True,
            "drawn": 384,
            "twice": 48,
            "possible": 90,
        },
        "selfkl": [1e-12] * 40,
        "passkey": [["far", 1e-9, 1, 1, 8031], ["generated", 2e-6, 12, 12, 8031]],
    }
    return {f"{name}/": {name: value} for name, value in {**clean, **changes}.items()}


def seen(**changes: Any) -> Seen:
    measures = {
        "runs": {f"{run}/": {"long": prompt()} for run in ("alone", "together", "again", "late")},
        "probes": probes(),
        "sane": {"sdpa": 5e-13, "twin": 4e-13},
        "weights": {"missing": [], "extra": [], "unfilled": [], "differing": [], "compared": 139},
    }
    facts = {
        "prefix_caching": True,
        "chunked_prefill": True,
        "cache": {"bytes_per_token": (512 + 64 + 128) * 4 * 3, "kinds": ["MLAAttentionSpec"]},
    }
    fields = {"variant": "deepseek-v3.2", "dtype": "float32", "config": CONFIG}
    return Seen(**{**fields, "facts": facts, "measures": measures, **changes})


def judged(name: str, of: Seen) -> CheckResult:
    # A model that looks things up is held to little else.
    by_hand = {"passkey": {}} if name == "longctx.passkey" else {}
    return checks.judge(replace(of, config={**of.config, **by_hand}), [name])[0]


def under(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Seen:
    """What would have been seen had `change` been done to (measures, facts)."""
    clean = seen()
    measures, facts = copy.deepcopy(dict(clean.measures)), copy.deepcopy(dict(clean.facts))
    change(measures, facts)
    return seen(measures=measures, facts=facts)


def of_run(run: str, **changes: Any) -> Seen:
    return under(
        lambda measures, _: measures["runs"].update({f"{run}/": {"long": prompt(**changes)}})
    )


def of_probe(**changes: Any) -> Seen:
    return under(lambda measures, _: measures.update(probes=probes(**changes)))


SAMPLED = probes()["sampled/"]["sampled"]


@pytest.mark.parametrize("name", EVERY)
def test_a_clean_run_passes(name: str) -> None:
    assert judged(name, seen()).status == "pass"


FAULTS = {
    "oracle.sane": under(lambda m, _: m["sane"].update(twin=0.02)),
    "weights.coverage": under(lambda m, _: m["weights"].update(unfilled=["model.norm.weight"])),
    "weights.values": under(lambda m, _: m["weights"].update(differing=["model.norm.weight"])),
    "golden.fp32": of_run(
        "alone", layers=[["layer.0", 1e-14], ["layer.1", 2e-3]] + [["x", 0.1]] * 2
    ),
    "golden.routes": of_run("alone", routes=[[1, 0, 311], [2, 1, 311]]),
    "indexer.choices": of_run(
        "alone", choices=[[0, 0.0, 0, 311], [1, 0.2, 3, 311], [2, 0.0, 0, 311]]
    ),
    "layers.local": of_probe(local=[["long", 0, 5e-13, 300, 300], ["long", 1, 4e-4, 300, 300]]),
    "layers.ladder": of_probe(ladder=[[0, 3e-13, 2e-13], [1, 2e-3, 3e-13], [2, 1e-3, 4e-13]]),
    "layers.inside": of_run(
        "alone", places={"rows": [0], "found": {"0.rope": place(relative=0.2)}, "unobserved": []}
    ),
    "routes.replayed": of_probe(replayed=[["layer.0", 1e-13, 77], ["layer.1", 4e-3, 77]]),
    "kernels.route": of_probe(routed=[["below", 1, 0.3, 295, 300, True]]),
    "rope.table": of_probe(turned=[[0, 0.0], [5119, 0.2]]),
    "longctx.passkey": of_probe(passkey=[["far", 36.5, 0, 1, 8031], ["last", 1e-9, 12, 12, 8031]]),
    "logits.kl": of_run("alone", divergence=1e-4),
    "logits.topk": of_run("alone", best=0.02),
    "decode.late": of_run("late", decode_logprob=0.3),
    "inv.selfkl": of_probe(selfkl=[1e-12] * 39 + [0.16]),
    "sampling.distribution": of_probe(sampled={**SAMPLED, "deviation": 40.0}),
    "sampling.seed": of_probe(sampled={**SAMPLED, "repeated": False}),
    "greedy.forced": of_run("alone", argmax_missed=2, worst_missed_margin=0.2),
    "decode.paged": of_run("alone", decode_logprob=0.3),
    "prefill.chunked": of_run("alone", prefill_logprob=0.3),
    "prefix.hit": of_run("again", first_step_logprob=0.3),
    "batch.mixed": of_run("together", prefill_logprob=0.3),
    "cache.latent": under(lambda _, f: f["cache"].update(bytes_per_token=4 * 320 * 4 * 3)),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_faulty_run_fails(name: str) -> None:
    assert judged(name, FAULTS[name]).status == "fail"


def without_numbers() -> dict[str, Any]:
    """A prompt of which every measure came out as no number."""
    nothing = float("nan")
    found = {key: nothing if isinstance(value, float) else value for key, value in prompt().items()}
    found["layers"] = [[layer, nothing] for layer, _ in found["layers"]]
    found["places"] = {"rows": [0], "found": {"0.rope": place(relative=nothing)}}
    found["choices"] = [[layer, nothing, 0, 311] for layer in range(3)]
    return found


@pytest.mark.parametrize("name", EVERY)
def test_no_check_passes_a_measure_that_is_not_a_number(name: str) -> None:
    runs = {
        f"{run}/": {"long": without_numbers()} for run in ("alone", "together", "again", "late")
    }
    nothing = float("nan")
    asked = probes(
        local=[["long", 0, nothing, 300, 300]],
        ladder=[[layer, nothing, 2e-13] for layer in range(3)],
        replayed=[["layer.0", nothing, 77]],
        routed=[["none", 1, nothing, 300, 300, True]],
        turned=[[0, nothing]],
        sampled={**SAMPLED, "deviation": nothing},
        selfkl=[1e-12] * 39 + [nothing],
        passkey=[["far", nothing, 0, 1, 8031]],
    )
    broken = under(lambda m, _: m.update(runs=runs, probes=asked, sane={"sdpa": float("nan")}))
    exact = ("weights.coverage", "weights.values", "golden.routes")
    if name not in (*exact, "sampling.seed", "cache.latent"):
        assert judged(name, broken).status == "fail"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "oracle.sane",
            "golden.fp32",
            "layers.inside",
            "indexer.choices",
            "logits.kl",
            "logits.topk",
        ),
        *("greedy.forced", "decode.paged", "decode.late", "prefill.chunked", "prefix.hit"),
        "batch.mixed",
    ],
)
def test_a_sound_measure_hides_none_that_is_not_a_number(name: str) -> None:
    both = {"short": prompt(), "long": without_numbers()}
    runs = {f"{run}/": both for run in ("alone", "together", "again", "late")}
    broken = under(lambda m, _: m.update(runs=runs, sane={"sdpa": 5e-13, "twin": float("nan")}))
    assert judged(name, broken).status == "fail"


def test_a_failure_names_the_first_layer_outside_the_band() -> None:
    note = judged("golden.fp32", FAULTS["golden.fp32"]).note
    assert note.startswith("first outside the band: layer.1 of prompt `long`")


def test_a_layer_that_was_not_seen_fails() -> None:
    short = of_run("alone", layers=[["layer.0", 1e-14], ["final", 1e-13]])
    assert judged("golden.fp32", short).status == "fail"


def test_logits_alone_can_fail_the_golden_check() -> None:
    assert judged("golden.fp32", of_run("alone", decode_rel=1e-3)).status == "fail"


def test_logits_that_are_not_finite_fail() -> None:
    assert judged("greedy.forced", of_run("alone", finite=False)).status == "fail"


def test_a_missed_argmax_within_rounding_is_excused() -> None:
    excused = of_run("alone", argmax_missed=1, worst_missed_margin=1e-6)
    assert judged("greedy.forced", excused).status == "pass"


@pytest.mark.parametrize("unchosen", [1.5, math.inf, math.nan])
def test_a_token_that_the_engine_s_own_logits_do_not_prefer_fails(unchosen: float) -> None:
    """The text parts from the oracle's at once, and where that is followed all of its logits are right."""
    drawn = of_run("alone", agreed_steps=0, decode_logprob=0.0, unchosen=unchosen)
    found = judged("greedy.forced", drawn)
    assert (found.status, "own logits" in found.note) == ("fail", True)
    assert found.measured is None, "a limit between margins knows nothing of who picks"
    assert judged("greedy.forced", of_run("alone", unchosen=0.05)).status == "pass"


def test_texts_that_part_fail_the_decode_check_by_the_margin_lost() -> None:
    parted = of_run("alone", agreed_steps=0, decode_logprob=0.0, worst_missed_margin=0.4)
    assert judged("decode.paged", parted).measured == 0.4


def test_decode_that_never_ran_token_by_token_fails() -> None:
    assert judged("decode.paged", of_run("alone", forwards=[300])).status == "fail"


def test_chunked_prefill_that_never_split_a_prompt_fails() -> None:
    whole = of_run("alone", forwards=[300, *([1] * 11)])
    assert judged("prefill.chunked", whole).status == "fail"


def test_prefix_caching_without_a_hit_fails() -> None:
    assert judged("prefix.hit", of_run("again", cached=0)).status == "fail"


@pytest.mark.parametrize(
    ("fact", "name"), [("chunked_prefill", "prefill.chunked"), ("prefix_caching", "prefix.hit")]
)
def test_what_the_engine_turned_off_is_not_shown(fact: str, name: str) -> None:
    found = judged(name, under(lambda _, facts: facts.update({fact: False})))
    assert found.status == "not-shown"
    assert "turned" in found.note


def test_routers_that_could_not_be_watched_are_not_shown() -> None:
    assert judged("golden.routes", of_run("alone", routes=[])).status == "not-shown"
    blind = judged("golden.routes", of_run("together", routes=[]))
    assert (blind.status, blind.note) == ("pass", "1866 choices, not watched: together")


@pytest.mark.parametrize("run", ["alone", "together", "again"])
def test_a_router_is_judged_in_every_run_that_watches_it(run: str) -> None:
    found = judged("golden.routes", of_run(run, routes=[[1, 0, 311], [2, 1, 311]]))
    assert (found.status, found.measured) == ("fail", 1)
    assert f"first: layer.2 of `long`, {run}" in found.note


def test_of_the_long_text_a_router_is_judged_by_the_second_model() -> None:
    found = judged("golden.routes", of_run("late", experts=[[1, 0.0, 0, 311], [2, 0.3, 2, 311]]))
    assert (found.status, found.measured) == ("fail", 2)


def test_weights_that_could_not_be_read_back_are_not_shown() -> None:
    blind = under(lambda m, _: m["weights"].update(compared=0))
    assert judged("weights.values", blind).status == "not-shown"
    assert judged("weights.coverage", blind).status == "not-shown"


def test_extra_prediction_layers_may_be_left_out_and_others_not() -> None:
    extra = under(lambda m, _: m["weights"].update(missing=["model.layers.3.eh_proj.weight"]))
    assert judged("weights.coverage", extra).status == "pass"
    lost = under(lambda m, _: m["weights"].update(missing=["model.layers.2.mlp.gate.weight"]))
    assert judged("weights.coverage", lost).status == "fail"


def test_many_names_are_cut_to_a_few() -> None:
    names = [f"model.layers.2.mlp.experts.{n}.up_proj.weight" for n in range(9)]
    note = judged("weights.values", under(lambda m, _: m["weights"].update(differing=names))).note
    assert note.endswith("and 6 more")


def test_a_dtype_without_a_tolerance_fails() -> None:
    found = judged("golden.fp32", seen(dtype="float8"))
    assert found.status == "fail"
    assert "no tolerance" in found.note


def test_a_refused_model_is_one_failure_and_the_rest_not_shown() -> None:
    found = checks.refused(seen(), "NotImplementedError: MLA")
    assert [result.status for result in found] == ["fail"] + ["not-shown"] * len(NAMES)
    assert found[0].note == "NotImplementedError: MLA"


def test_a_model_without_an_indexer_is_not_asked_for_its_choices() -> None:
    dense = seen(config=small.case("deepseek-v3").config)
    assert "indexer.choices" not in {result.check for result in checks.judge(dense)}
    assert "indexer.choices" not in {result.check for result in checks.refused(dense, "no")}


def test_a_model_whose_weights_were_made_by_hand_is_held_to_what_it_looks_up() -> None:
    by_hand = small.case("deepseek-v3/passkey")
    assert checks.fitting(by_hand.config) == list(checks.BY_HAND)
    assert "longctx.passkey" not in checks.fitting(small.case("deepseek-v3").config)
    assert suite.asked(by_hand) == ("turned", "passkey")
    planted = {fault.name for fault in faults.fitting("hook", by_hand.features)}
    assert planted == {"positions-clipped", "yarn-halved", "table-tail-wrong"}
    assert not faults.fitting("load", by_hand.features)


def test_what_is_looked_up_stands_in_the_text_where_it_is_said_to() -> None:
    config = small.case("deepseek-v3/passkey").config
    asked, known = passkey.asked(config), config["passkey"]
    prompt, tokens = asked["prompt"], known["tokens"]
    assert passkey.asked(small.case("deepseek-v3").config) == {}
    assert prompt[tokens - known["far"]] == prompt[asked["read"]["far"][0]] == passkey.LONE
    # Half of the region, and the middle of it, is of the segment's own token.
    middle = tokens + 2 - known["region"]
    around = prompt[middle - 128 : middle + 128]
    assert around.count(prompt[asked["read"]["region"][0]]) == 128
    for name in ("first", "middle"):
        string = [prompt[place] for place in asked["read"][name]]
        begins = prompt.index(string[0])
        assert prompt[begins - 1 : begins + len(string)] == [
            prompt[asked["read"][name][0] - 1],
            *string,
        ]
        assert begins < tokens
    begins = prompt.index(asked["answer"][0])
    assert prompt[begins - 1] == prompt[-1]
    assert tokens - 64 < begins < tokens


def test_indexers_that_were_not_watched_show_nothing() -> None:
    assert judged("indexer.choices", of_run("alone", choices=[])).status == "not-shown"
    some = of_run("alone", choices=[[0, 0.0, 0, 311]])
    assert judged("indexer.choices", some).status == "not-shown"


def test_a_set_of_impossible_keys_fails_whatever_the_limit() -> None:
    later = of_run("alone", choices=[[layer, float("inf"), 1, 311] for layer in range(3)])
    assert judged("indexer.choices", later).status == "fail"


def test_an_engine_that_stops_half_way_is_judged_by_what_it_had_shown() -> None:
    def stopped(measures: dict[str, Any], facts: dict[str, Any]) -> None:
        measures["runs"] = {"alone/": measures["runs"]["alone/"]}
        facts["error"] = "the process died after `alone`: Killed"

    found = {result.check: result for result in suite.results(under(stopped))}
    assert found["engine.start"].status == "pass"
    assert found["engine.run"].status == "fail"
    assert "Killed" in found["engine.run"].note
    unshown = {name for name, result in found.items() if result.status == "not-shown"}
    assert unshown == {"batch.mixed", "prefix.hit", "decode.late"}
    assert found["golden.fp32"].status == "pass"


def test_logits_of_the_prompt_that_an_engine_keeps_to_itself_are_a_failure() -> None:
    runs = {f"{run}/": {"long": prompt(prefill_rel=None)} for run in ("alone", "together", "again")}
    found = judged("golden.fp32", seen(measures={**seen().measures, "runs": runs}))
    assert (found.status, found.note) == ("fail", "worst: logits of prompt `long`")


PROBED = (
    "layers.local",
    "layers.ladder",
    "routes.replayed",
    "kernels.route",
    "rope.table",
    "inv.selfkl",
    "sampling.seed",
)


@pytest.mark.parametrize(
    ("kept", "told", "status", "note"),
    [
        ("unprobed", "LookupError: no such module", "not-shown", "no such module"),
        ("broken", "KeyError: 'layer.3'", "fail", "it broke: KeyError: 'layer.3'"),
    ],
    ids=["could not be made", "broke"],
)
@pytest.mark.parametrize("name", [*PROBED, "sampling.distribution", "decode.late"])
def test_a_probe_without_numbers_shows_nothing_or_fails_and_says_why(
    name: str, kept: str, told: str, status: str, note: str
) -> None:
    probe = next(run for run, names in selftest.RUN_CHECKS.items() if name in names)

    def lose(measures: dict[str, Any], facts: dict[str, Any]) -> None:
        measures["probes"].pop(f"{probe}/", None)
        measures["runs"].pop(f"{probe}/", None)
        facts[kept] = {probe: told}

    found = judged(name, under(lose))
    assert found.status == status
    assert note in found.note


def test_layers_of_which_most_tokens_went_elsewhere_are_not_passed() -> None:
    few = of_probe(local=[["long", 1, 5e-13, 100, 300]])
    assert judged("layers.local", few).status == "fail"


def test_a_router_that_divides_by_nothing_is_told_of() -> None:
    found = judged("kernels.route", of_probe(routed=[["below", 1, 2e-7, 295, 300, False]]))
    assert (found.status, found.note.endswith("not finite where all scores vanish")) == (
        "pass",
        True,
    )


def test_text_that_repeats_itself_more_than_the_oracle_s_fails() -> None:
    assert judged("decode.late", of_run("late", repeated=0.4)).status == "fail"
    both = of_run("late", repeated=0.4, expected_repeated=0.4)
    assert judged("decode.late", both).status == "pass"


def test_a_sampler_that_draws_the_same_whatever_the_seed_fails() -> None:
    stuck = of_probe(sampled={**SAMPLED, "varied": False})
    assert judged("sampling.distribution", stuck).status == "fail"
