"""LMDeploy's worker as far as it needs no tensors, and how an engine that shows nothing inside is judged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asking import UnaskableError

from dspatch import engines, errors, variants
from dspatch.cli import main
from dspatch.conformance import checks, refused, small, suite
from dspatch.conformance.report import CheckResult
from dspatch.engines import Options, lmdeploy
from dspatch.engines.workers.lmdeploy_worker import engine, faults, inside, probes, tokenizer
from dspatch.engines.workers.lmdeploy_worker.engine import Answer, Asked
from dspatch.stages import prove_any, proving
from tests.unit.test_conformance_checks import judged, prompt, seen

REQUEST = {"options": {"max_num_batched_tokens": 4}, "prompts": {"short": [9, 9]}}


def black_box(**changes: Any) -> Any:
    """What is seen of an engine that shows nothing inside."""
    facts = {**seen().facts, "watched": [], "reads_apart": True}
    own = {**prompt(), "layers": [], "forwards": [], **changes}
    runs = {f"{run}/": {"long": own} for run in ("alone", "together", "again", "late", "scored")}
    return seen(facts=facts, measures={**seen().measures, "runs": runs})


def test_logits_alone_judge_an_engine_that_shows_no_layers() -> None:
    assert judged("golden.fp32", black_box()).status == "pass"
    assert "shows no layers" in judged("golden.fp32", black_box()).note
    assert judged("golden.fp32", black_box(decode_rel=0.5)).status == "fail"


def test_an_engine_that_can_be_watched_and_shows_no_layers_fails() -> None:
    watched = replace(black_box(), facts={**black_box().facts, "watched": ["layers"]})
    assert judged("golden.fp32", watched).status == "fail"


@pytest.mark.parametrize("name", ["prefill.chunked", "prefix.hit"])
def test_what_it_does_not_tell_is_not_shown(name: str) -> None:
    assert judged(name, black_box(told_cached=False, cached=0)).status == "not-shown"


def test_a_cache_that_it_tells_of_has_to_be_hit() -> None:
    assert judged("prefix.hit", black_box(told_cached=True, cached=0)).status == "fail"


def test_decode_needs_no_passes_that_nobody_could_see() -> None:
    assert judged("decode.paged", black_box()).status == "pass"
    assert judged("decode.paged", black_box(forwards=[300])).status == "fail"


def test_what_follows_a_reading_is_asked_of_those_that_read_apart() -> None:
    assert [one.check for one in checks.judge(black_box(), ["decode.scored"])] == ["decode.scored"]
    assert not checks.judge(seen(), ["decode.scored"])
    assert judged("decode.scored", black_box(first_step_logprob=2.0)).status == "fail"


def test_weights_that_nobody_read_are_no_symptom() -> None:
    nothing = {"missing": ["a"], "extra": [], "unfilled": [], "differing": [], "compared": 0}
    of = replace(black_box(), measures={**black_box().measures, "weights": nothing})
    assert judged("weights.coverage", of).status == "not-shown"


def test_a_refusal_is_told_apart_from_a_failure() -> None:
    why = "NotImplementedError: TurboMind cannot compute DeepseekV3ForCausalLM: one group"
    [start, *rest] = checks.refused(seen(), why)
    assert (start.status, refused.reason(start)) == (
        "not-shown",
        why.removeprefix("NotImplementedError: "),
    )
    assert {one.status for one in rest} == {"not-shown"}
    asked = (
        "RuntimeError: TurboMind was asked for and cannot serve deepseek-v3: no. Ask for another"
    )
    [start, *rest] = checks.refused(seen(), asked)
    assert refused.reason(start) == "TurboMind was asked for and cannot serve deepseek-v3: no"
    taken = "RuntimeError: TurboMind was asked for, and lmdeploy.pytorch.engine was started"
    assert checks.refused(seen(), taken)[0].status == "fail"
    [crash, *_] = checks.refused(seen(), "RuntimeError: no")
    assert (crash.status, refused.reason(crash)) == ("fail", "")
    other = CheckResult(check="engine.start", variant="v", dtype="d", status="not-shown", note="no")
    assert refused.reason(other) == ""


def test_models_for_a_gpu_have_the_heads_and_groups_that_kernels_want() -> None:
    names = ["deepseek-v2", "deepseek-v3"]
    assert small.on_gpu(names, "vllm") == ["deepseek-v2/sixteen-heads", "deepseek-v3/sixteen-heads"]
    assert small.on_gpu(names, "turbomind") == [
        "deepseek-v2/sixteen-heads-in-groups/bfloat16",
        "deepseek-v2/sixteen-heads-in-groups",
        "deepseek-v3/sixteen-heads/bfloat16",
        "deepseek-v3/sixteen-heads",
    ]
    assert small.on_gpu(["deepseek-v3/saved"], "turbomind") == ["deepseek-v3/saved"]
    for name in small.on_gpu(names, "turbomind"):
        assert small.case(name).config["num_attention_heads"] == 16


@pytest.mark.parametrize("kind", ["vllm", "turbomind", "pytorch", "processes", "tinyserve"])
def test_of_all_variants_none_is_left_with_fewer_heads_than_kernels_want(kind: str) -> None:
    found = small.on_gpu(variants.names(), kind)
    assert any(name.startswith("deepseek-v2.5/") for name in found)
    least = 32 if kind == "processes" else 16
    assert {small.case(name).config["num_attention_heads"] for name in found} == {least}


@pytest.mark.parametrize("kind", ["turbomind", "pytorch"])
def test_lmdeploy_is_given_checkpoints_as_published_and_in_float32(kind: str) -> None:
    # 0.17.0's conversion is right for one of them alone.
    found = small.on_gpu(["deepseek-v2-lite", "deepseek-v3"], kind)
    written = [small.case(name).config["torch_dtype"] for name in found]
    assert written == ["bfloat16", "float32"] * 2


@pytest.mark.parametrize("kind", ["vllm", "turbomind", "pytorch"])
@pytest.mark.parametrize("more", [{"adversarial": True}, {"quantised": "fp8"}])
def test_forms_asked_for_on_a_gpu_have_the_heads_that_kernels_want(
    kind: str, more: dict[str, Any]
) -> None:
    engine = "vllm" if kind == "vllm" else "lmdeploy"
    wanted = proving.Wanted(dtype="bfloat16", backend="" if engine == "vllm" else kind, **more)
    found = [small.case(n) for n in proving.models_to_run(engine, "cuda", wanted, ["deepseek-v3"])]
    assert found
    assert {case.config["num_attention_heads"] for case in found} == {16}
    plain = [small.case(n) for n in proving.models_to_run(engine, "cpu", wanted, ["deepseek-v3"])]
    assert [case.stored for case in found] == [case.stored for case in plain]
    for fitted, case in zip(found, plain, strict=True):
        changed = {key for key, value in fitted.config.items() if case.config[key] != value}
        assert changed <= {"num_attention_heads", "num_key_value_heads", "torch_dtype"}


def test_what_would_fail_for_want_of_limits_is_refused_before_a_start() -> None:
    def need(of: str, target: str, model: str, **more: str) -> None:
        proving.need_limits(of, target, [model], proving.Wanted(**more))

    with pytest.raises(errors.NoToleranceError, match=r"decode\.paged, .*batch\.mixed") as caught:
        need("lmdeploy", "cuda", "deepseek-v3", dtype="float16")
    assert caught.value.exit_code == 62
    assert "--dtype bfloat16" in caught.value.next
    need("lmdeploy", "cuda", "deepseek-v3", dtype="bfloat16", backend="turbomind")
    need("lmdeploy", "cuda", "deepseek-v3", dtype="float16", backend="pytorch")
    need("vllm", "cuda", "deepseek-v3", dtype="float16")
    need("vllm", "cpu", "deepseek-v3/fp8", dtype="bfloat16")
    for of, backend in (("vllm", ""), ("lmdeploy", "pytorch"), ("lmdeploy", "turbomind")):
        with pytest.raises(errors.NoToleranceError, match=r"weights\.quantised"):
            need(of, "cuda", "deepseek-v3/fp8", dtype="bfloat16", backend=backend)


@pytest.mark.parametrize("more", [["--dtype", "float16"], ["--quantised", "fp8"]])
def test_the_command_ends_with_the_code_of_its_table(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prove_any.Subject(
        engine="lmdeploy", version="0.18.0", target="cuda", where="x", key="x", python=Path
    )
    monkeypatch.setattr(prove_any, "in_environment", lambda *given: found)
    words = ["conformance", "--engine", "lmdeploy", "--env", "x", "--backend", "turbomind"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *more])
    assert ended.value.code == 62
    assert not list(tmp_path.iterdir())


def test_neither_engine_computes_in_float32() -> None:
    with pytest.raises(errors.NoToleranceError, match="float32"):
        proving.need_computed_in("lmdeploy", "float32")
    proving.need_computed_in("lmdeploy", "bfloat16")
    proving.need_computed_in("vllm", "float32")


def test_only_its_faults_take_starts_and_only_it_is_asked_what_follows_a_reading() -> None:
    assert suite.starts("lmdeploy")
    assert not suite.starts("vllm")
    case = small.case("deepseek-v3")
    assert "scored" in suite.asked(case, apart=True)
    assert "scored" not in suite.asked(case)


def test_the_environment_keeps_what_was_asked_for() -> None:
    found = lmdeploy.environment(Options(threads=3, variables={"LMDEPLOY_MLA_DECODE": "dspatch"}))
    assert (found["OMP_NUM_THREADS"], found["LMDEPLOY_MLA_DECODE"]) == ("3", "dspatch")
    assert engines.get("lmdeploy") is lmdeploy


def test_a_checkpoint_gets_a_tokenizer_of_as_many_words(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "config.json").write_text('{"vocab_size": 7}')
    (given / "tokenizer_config.json").write_text("{}")
    made = tokenizer.beside(given, tmp_path / "made")
    known = json.loads((made / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(known.values()) == list(range(7))
    assert (made / "config.json").resolve() == given / "config.json"
    assert (made / "tokenizer_config.json").read_text() == "{}"
    assert not (given / "tokenizer.json").exists()
    assert engine.vocabulary(made) == 7


def test_an_answer_that_is_an_error_is_one() -> None:
    engine.need_sound(SimpleNamespace(status=SimpleNamespace(name="FINISH")))
    with pytest.raises(RuntimeError, match="PREFIX_CACHE_CONFLICT"):
        engine.need_sound(SimpleNamespace(status=SimpleNamespace(name="PREFIX_CACHE_CONFLICT")))


class Counting:
    """An engine whose every token is the length of the text before it; it keeps what it was asked."""

    def __init__(self, cached: int = 0) -> None:
        self.asked: list[Asked] = []
        self.cached = cached

    def ask(self, asked: Sequence[Asked]) -> list[Answer]:
        self.asked += asked
        return [
            Answer([len(one.prompt) + step for step in range(one.steps)], cached=self.cached)
            for one in asked
        ]

    def asked_by(self, ask: Any) -> Any:
        return SimpleNamespace(ask=ask)


def under(name: str, asked: Asked, cached: int = 0) -> tuple[Answer, list[Asked]]:
    it: Any = Counting(cached)
    [answer] = faults.planted(it, name, REQUEST).ask([asked])
    return answer, it.asked


def test_a_cache_lost_before_decode_leaves_each_step_its_last_token() -> None:
    answer, asked = under("cache-lost-before-decode", Asked([5, 6, 7], 3))
    assert [list(one.prompt) for one in asked] == [[5, 6, 7], [3], [1]]
    assert answer.tokens == [3, 1, 1]
    late, asked = under("cache-lost-late", Asked([5, 6, 7], 3))
    assert (late.tokens, len(asked)) == ([3, 4, 5], 1)


def test_a_cached_prefix_that_is_lost_leaves_the_rest_of_the_prompt() -> None:
    prompt = list(range(100))
    _, asked = under("cached-prefix-lost", Asked(prompt, 2, "steps"), cached=70)
    assert list(asked[-1].prompt) == prompt[64:]
    _, asked = under("cached-prefix-lost", Asked(prompt, 2, "steps"), cached=0)
    assert len(asked) == 1


def test_chunks_without_their_cache_each_begin_the_prompt() -> None:
    _, asked = under("cache-lost-between-chunks", Asked(list(range(10)), 2))
    assert [list(one.prompt) for one in asked] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_is_not_heeded_is_another_thing_than_asked() -> None:
    drawn = Asked([1], 1, temperature=0.7, top_p=0.9, seed=3)
    assert under("temperature-ignored", drawn)[1][0].temperature == 1.0
    assert under("top-p-ignored", drawn)[1][0].top_p == 1.0
    assert under("seed-ignored", drawn)[1][0].seed != 3
    assert under("seed-ignored", Asked([1], 1))[1][0].seed is None
    assert list(under("foreign-row-after-scoring", drawn)[1][0].prompt) == [9, 9]


class Short(Counting):
    """An engine that ends a text before its last token."""

    def ask(self, asked: Sequence[Asked]) -> list[Answer]:
        return super().ask([replace(one, steps=one.steps - 1) for one in asked])


@pytest.mark.parametrize("name", ["sampled", "selfkl", "passkey"])
def test_a_text_that_breaks_off_is_no_reason_not_to_look(name: str) -> None:
    prompts = {"short": [9, 9], "medium": [9] * 4, "long": [9] * 8}
    lookup = {"prompt": [9] * 8, "answer": [7, 8], "read": {"near": [3]}}
    request = {"prompts": prompts, "steps": 3, "lookup": lookup}
    with pytest.raises(RuntimeError, match="tokens that were asked for"):
        probes.PROBES[name](Short(), request)  # type: ignore[arg-type]


def test_what_stands_inside_cannot_be_planted_from_outside() -> None:
    with pytest.raises(UnaskableError, match="nothing inside"):
        under("wrong-epsilon", Asked([1], 1))


def test_limits_of_answers_alone_are_those_of_the_device_for_them() -> None:
    narrow = replace(black_box(), dtype="bfloat16", device="cuda")
    assert narrow.scale("decode.paged") == "cuda-answers"
    assert narrow.scale("golden.fp32") == "cuda"
    assert replace(narrow, facts=seen().facts).scale("decode.paged") == "cuda"
    assert replace(narrow, dtype="float32").scale("decode.paged") == "cuda"


def rows(read: int, generated: Sequence[float]) -> dict[str, Any]:
    """What is known of each row of a prompt of which `read` are read."""
    every = [*[0.02] * read, *generated]
    return {**prompt()["each"], "first": 0, "read": read, "logprob": every, "followed": []}


def answered(name: str, generated: Sequence[float]) -> CheckResult:
    each = rows(40, generated)
    narrow = black_box(each=each, told_cached=True, cached=32)
    return judged(name, replace(narrow, dtype="bfloat16"))


@pytest.mark.parametrize("name", ["decode.paged", "batch.mixed", "prefix.hit", "decode.scored"])
def test_of_answers_alone_a_typical_generated_token_decides(name: str) -> None:
    turned = [0.02] * 10 + [3.0, 3.0]
    assert answered(name, turned).status == "pass"
    assert answered(name, [3.0] * 12).status == "fail"
    assert answered(name, [float("nan")] * 12).status == "fail"


@pytest.mark.parametrize("name", ["decode.paged", "batch.mixed", "prefix.hit", "decode.scored"])
def test_a_text_that_a_turned_router_parts_at_once_is_judged_by_its_own_tokens(name: str) -> None:
    def parted(own: Sequence[float]) -> CheckResult:
        each = rows(40, [0.02, 1.44]) | {"by_text": [0.02] * 40 + list(own)}
        given = {"agreed_steps": 1, "told_cached": True, "cached": 32}
        return judged(name, replace(black_box(each=each, **given), dtype="bfloat16"))

    assert parted([0.02, 1.44, *[0.03] * 10]).status == "pass"
    assert parted([0.02, *[1.44] * 11]).status == "fail"
    assert parted([float("nan")] * 12).status == "fail"


def test_of_a_long_text_the_second_half_of_its_own_decides() -> None:
    each = rows(0, [0.02] * 8) | {"by_text": [0.02] * 100 + [3.0] * 60}
    narrow = replace(black_box(each=each), dtype="bfloat16")
    assert judged("decode.late", narrow).status == "fail"
    sound = rows(0, [0.02] * 8) | {"by_text": [0.02] * 160}
    assert judged("decode.late", replace(black_box(each=sound), dtype="bfloat16")).status == "pass"


@pytest.mark.parametrize("name", ["batch.mixed", "decode.late", "decode.scored", "prefix.hit"])
@pytest.mark.parametrize("watched", [[], ["layers", "routes"]])
def test_a_text_that_broke_off_fails_where_the_oracles_has_parted_before_too(
    name: str, watched: list[str]
) -> None:
    parted = {"agreed_steps": 3, "told_cached": True, "cached": 32}
    whole = black_box(each=rows(40, [0.02] * 4) | {"followed": [0.02] * 44}, **parted)
    broken = black_box(each=rows(40, [0.02] * 4), finite=False, **parted)
    facts = {**whole.facts, "watched": watched}
    assert judged(name, replace(whole, dtype="bfloat16", facts=facts)).status == "pass"
    found = judged(name, replace(broken, dtype="bfloat16", facts=facts))
    assert found.status == "fail"
    assert "broke off" in found.note


class Module:
    """As torch's, as far as hooks go: those before a call run when the module is called, not its `forward`."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        self.forward = forward
        self.before: list[Callable[..., None]] = []
        vars(self).update(parts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in self.before:
            hook(self, args, kwargs)
        return self.forward(*args, **kwargs)

    def register_forward_hook(self, hook: Any) -> Any:
        return nullcontext()

    def register_forward_pre_hook(self, hook: Any, *, with_kwargs: bool) -> Any:
        self.before.append(hook)
        return nullcontext()


class Numbers(list[int]):
    """Whole numbers, as a tensor of them is asked."""

    def flatten(self) -> Numbers:
        return self

    def tolist(self) -> list[int]:
        return list(self)


def test_passes_are_noted_where_the_engine_calls_its_model_and_not_the_layers_of_it() -> None:
    layer = Module(lambda: None, self_attn=None, mlp=None)
    inner = Module(lambda input_ids, position_ids: None, layers=[layer], norm=layer)
    whole = Module(lambda input_ids, position_ids: inner.forward(input_ids, position_ids))
    vars(whole)["model"] = inner
    agent = SimpleNamespace(patched_model=SimpleNamespace(get_model=lambda: whole))
    of: Any = SimpleNamespace(engine=SimpleNamespace(executor=SimpleNamespace(model_agent=agent)))
    with inside.recording(of) as recorder:
        whole(input_ids=Numbers([5, 6]), position_ids=Numbers([0, 1]))
    assert recorder.passes == [([5, 6], [0, 1])]


def test_an_engine_that_does_not_count_cached_tokens_is_not_taken_at_its_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = SimpleNamespace(_tm=SimpleNamespace(RequestMetrics=SimpleNamespace(cached_tokens=0)))
    older = SimpleNamespace(_tm=SimpleNamespace(RequestMetrics=SimpleNamespace(enqueue_time=0)))
    for name, module in (("counted", counted), ("older", older), ("other", SimpleNamespace())):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    assert engine._tells_cached("counted")
    assert not engine._tells_cached("older")
    assert engine._tells_cached("other")


def test_what_a_cache_takes_is_told_by_its_bytes_and_views_of_them_count_once() -> None:
    storage = SimpleNamespace(data_ptr=lambda: 1, nbytes=lambda: 144 * 32 * 3456)
    part = SimpleNamespace(untyped_storage=lambda: storage)
    agent = SimpleNamespace(cache_engine=SimpleNamespace(gpu_cache=[[part, part]] * 3))
    sizes = SimpleNamespace(num_gpu_blocks=144, block_size=32)
    running = SimpleNamespace(executor=SimpleNamespace(model_agent=agent), cache_config=sizes)
    of: Any = SimpleNamespace(engine=running)
    assert inside.cache(of)["bytes_per_token"] == 3456
    with pytest.raises(UnaskableError, match="no cache"):
        inside.cache(SimpleNamespace(engine=SimpleNamespace()))  # type: ignore[arg-type]
    with pytest.raises(UnaskableError, match="can be watched"):
        inside.model_of(SimpleNamespace(engine=SimpleNamespace()))  # type: ignore[arg-type]
