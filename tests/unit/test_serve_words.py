"""Command lines taken apart as argparse does it, and a verdict of every kind on planted words."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspatch.serve import commandline, engines, flags
from dspatch.serve.answers import Answer
from dspatch.serve.environment import Environment, Variable
from dspatch.serve.known import Known
from dspatch.serve.option import Option
from dspatch.serve.options import HELP, Rules, Taken
from dspatch.serve.verdict import Judge, Verdict
from dspatch.serve.words import walk

FACTS = engines.facts("vllm")
OPTIONS = (
    HELP,
    Option(names=("--port",), values="one", type="int"),
    Option(names=("--tensor-parallel-size", "-tp"), values="one", type="int"),
    Option(names=("--max-model-len",), values="one"),
    Option(names=("--max-num-seqs",), values="one", optional=True, type="int"),
    Option(names=("--dtype",), values="one", choices=("auto", "half")),
    Option(names=("--eager", "--no-eager"), values="none"),
    Option(names=("--names",), values="some"),
    Option(names=("--config-json",), values="one", keys=("method", "level")),
    Option(names=("--old",), values="one", deprecated="deprecated"),
    Option(names=("--pair",), values="one", count=2),
    Option(names=("-O", "--level"), values="one"),
    Option(
        names=("--backend",), values="one", choices=("deep_gemm",),
        convert=lambda text: text.lower().replace("-", "_"),
    ),
)  # fmt: skip
RULES = Rules(underscores=True, dotted=True, plus=True, level=True)
MODEL = (Option(names=("model_tag",), values="optional"),)
ANSWERS = {
    "--warmup-steps": Answer(names=("--warmup-steps",), fate="never", say="leave it out"),
    "--gone": Answer(names=("--gone",), fate="renamed", say="renamed", instead=("--port", "--not-here")),
    "--old": Answer(names=("--old",), fate="renamed", say="use", instead=("--port",)),
}  # fmt: skip
RELEASES = ("0.1", "0.2", "0.3", "0.4")
KNOWN = Known(
    releases=RELEASES,
    names={
        "options": {
            "--gone": "0.1–0.2",
            "--later": "0.4",
            "--port": "0.1–0.4",
            "--dtype": "0.2–0.4",
        },
        "environment": {"VLLM_GONE": "0.1"},
    },
)
JUDGE = Judge(known=KNOWN, answers=ANSWERS, version="0.3")


def taken(rules: Rules = RULES, *, holes: bool = False) -> Taken:
    return Taken(
        options=OPTIONS, positionals=MODEL, rules=rules, unparsed=("a file",) if holes else (),
    )  # fmt: skip


def verdicts(text: str, rules: Rules = RULES, *, holes: bool = False) -> list[Verdict]:
    line = commandline.parse(["vllm", "serve", *text.split()], FACTS)
    return list(flags.of_arguments(line, taken(rules, holes=holes), JUDGE))


def one(text: str, rules: Rules = RULES, *, holes: bool = False) -> Verdict:
    (found,) = verdicts(text, rules, holes=holes)
    return found


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("MODEL", "known", ""),
        ("--port 80", "known", ""),
        ("--port=80", "known", ""),
        ("-tp 8", "known", ""),
        ("--tensor_parallel_size 8", "known", ""),
        ("--no-eager", "known", ""),
        ("--tensor 8", "known", "taken for --tensor-parallel-size"),
        ("--max 8", "wrong", "may be --max-model-len, --max-num-seqs"),
        ("--dtype half", "known", ""),
        ("--dtype fp9", "wrong", "'fp9' is none of auto, half"),
        ("--port x", "wrong", "'x' is no whole number"),
        ("--max-num-seqs None", "known", ""),
        ("--port", "wrong", "its value is missing"),
        ("--port --eager --no-eager", "wrong", "its value is missing"),
        ("--pair 1", "wrong", "its value is missing"),
        ("--pair 1 2", "known", ""),
        ("--eager=1", "wrong", "takes no value"),
        ("--names a b", "known", ""),
        ("--old 1", "deprecated", "use"),
        ("--backend Deep-GEMM", "known", ""),
        ("--backend other", "wrong", "is none of deep_gemm"),
        ('--config-json {"method":"mtp"}', "known", ""),
        ('--config-json {"methods":"mtp"}', "wrong", "has no key methods"),
        ("--config-json.level 3", "known", ""),
        ("--config-json.level+ 3", "known", ""),
        ("--config-json.depth 3", "wrong", "has no key depth"),
        ("-O3", "known", ""),
        ("--warmup-steps 3", "unknown", "leave it out"),
        ("--warmup_steps 3", "unknown", "leave it out"),
        ("--gone 3", "unknown", "renamed"),
        ("--nowhere", "unknown", "no release that was read has it"),
    ],
)
def test_each_word_has_its_verdict(text: str, state: str, said: str) -> None:
    found = verdicts(text)[0]
    assert (found.state, said in found.say) == (state, True), found


def test_an_unknown_option_names_its_releases_its_successor_and_the_nearest_name() -> None:
    gone = one("--gone 3")
    assert (gone.exists, gone.instead, gone.values) == ("in 0.1–0.2", ("--port",), ("3",))
    assert one("--later 1").exists == "comes with 0.4"
    assert one("--prot 80").nearest == "--port"
    assert one("--warmup-steps 3").exists == "in no release"
    assert one("--dtype half").exists == "since 0.2"
    assert one("--port 1").exists == "since 0.1 or earlier"


def test_what_cannot_be_decided_is_said_to_be_so() -> None:
    assert one("--nowhere", holes=True).state == "undecided"
    assert one("--gone 1", holes=True).state == "undecided"
    # No release had it, whatever this one's source hides.
    assert one("--warmup-steps 3", holes=True).state == "unknown"
    assert one("--port 80", holes=True).state == "known"


def test_a_parser_of_old_takes_no_underscores_and_no_dots() -> None:
    found = one("--tensor_parallel_size 8", Rules())
    assert (found.state, "--tensor-parallel-size" in found.say) == ("unknown", True)
    assert one("--config-json.level 3", Rules()).state == "unknown"
    assert one("--tensor 8", Rules(abbreviations=False)).state == "unknown"


def test_a_parser_with_dots_alone_takes_no_plus() -> None:
    found = one("--config-json.level+ 3", Rules(dotted=True))
    assert (found.state, found.say) == ("wrong", "has no key level+")
    assert one("--config-json.level+ 3", Rules(dotted=True, plus=True)).state == "known"


@pytest.mark.parametrize(
    ("rule", "state"), [("refused", "wrong"), ("deprecated", "deprecated"), ("", "known")]
)
def test_the_model_as_an_option(rule: str, state: str) -> None:
    model = Option(names=("--model",), values="one")
    found = taken(Rules(model=rule))  # type: ignore[arg-type]
    found.table["--model"] = model
    line = commandline.parse(["vllm", "serve", "--model", "M"], FACTS)
    (verdict,) = flags.of_arguments(line, found, JUDGE)
    assert verdict.state == state


def test_the_level_of_later_releases_is_an_option_of_its_own() -> None:
    option = Option(names=("--optimization-level",), values="one", type="int")
    found = Taken(options=(option,), positionals=MODEL, rules=RULES)
    for text, state in (
        ("-O3", "known"),
        ("-O=2", "known"),
        ("-O 1", "known"),
        ("-Ofast", "wrong"),
    ):
        line = commandline.parse(["vllm", "serve", *text.split()], FACTS)
        (verdict,) = flags.of_arguments(line, found, JUDGE)
        assert (verdict.state, text) == (state, text)


def test_a_needed_word_that_is_missing_is_told() -> None:
    needing = Taken(
        options=(), positionals=(Option(names=("model_tag",), values="one"),), rules=RULES
    )
    for words, states in (
        (["vllm", "serve"], ["wrong"]), (["vllm", "serve", "M"], ["known"]), (["--"], []),
    ):  # fmt: skip
        line = commandline.parse(words, FACTS)
        assert [each.state for each in flags.of_arguments(line, needing, JUDGE)] == states


def test_a_word_too_many_is_unknown() -> None:
    found = verdicts("MODEL --port 80 OTHER")
    assert [(each.word, each.state) for each in found][-1] == ("OTHER", "unknown")


ENVIRONMENT = Environment(
    variables={
        "VLLM_LEVEL": Variable(name="VLLM_LEVEL", choices=("high", "low"), folded=True),
        "VLLM_MODE": Variable(name="VLLM_MODE", choices=("a",)),
        "VLLM_SWITCH": Variable(name="VLLM_SWITCH", type="int"),
        "HOME_OF_VLLM": Variable(name="HOME_OF_VLLM"),
    }
)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("VLLM_LEVEL=HIGH", "known"),
        ("VLLM_LEVEL=middle", "wrong"),
        ("VLLM_MODE=A", "wrong"),
        ("VLLM_SWITCH=1", "known"),
        ("VLLM_SWITCH=true", "wrong"),
        ("VLLM_GONE=1", "unknown"),
        ("HOME_OF_VLLM=/", "known"),
        ("CUDA_VISIBLE_DEVICES=0", "unchecked"),
    ],
)
def test_each_variable_has_its_verdict(word: str, state: str) -> None:
    line = commandline.parse([word, "vllm", "serve", "M"], FACTS)
    (found,) = flags.of_variables(line, ENVIRONMENT, FACTS, JUDGE)
    assert found.state == state
    blind = Environment(variables={}, unread=("envs.py",))
    (found,) = flags.of_variables(line, blind, FACTS, JUDGE)
    assert found.state == ("undecided" if word.startswith("VLLM_") else "unchecked")


@pytest.mark.parametrize(
    ("text", "assignments", "program", "arguments"),
    [
        ("vllm serve M --port 1", [], "vllm serve", "M --port 1"),
        ("A=1 VLLM_X= vllm serve M", ["A", "VLLM_X"], "vllm serve", "M"),
        ("env -u B A=1 numactl -N 0 /opt/bin/vllm serve M", ["A"], "/opt/bin/vllm serve", "M"),
        (
            "python3 -u -m vllm.entrypoints.openai.api_server --model M", [],
            "python3 -u -m vllm.entrypoints.openai.api_server", "--model M",
        ),
        ("python vllm/entrypoints/openai/api_server.py --model M", [],
         "python vllm/entrypoints/openai/api_server.py", "--model M"),
        ("docker run -e A=1 --gpus all vllm/vllm-openai:v0.9.0 --model M", ["A"],
         "vllm/vllm-openai:v0.9.0", "--model M"),
        ("--model M --port 1", [], "", "--model M --port 1"),
        ("A=1 --port 1", ["A"], "", "--port 1"),
    ],
)  # fmt: skip
def test_the_parts_of_a_command_line(
    text: str, assignments: list[str], program: str, arguments: str
) -> None:
    for words in (text.split(), [text]):
        line = commandline.parse(words, FACTS)
        assert [name for name, _ in line.assignments] == assignments
        assert (" ".join(line.program), " ".join(line.arguments)) == (program, arguments)
        assert line.server is not None


@pytest.mark.parametrize("text", ["vllm bench serve", "ls -l", "torchrun x.py --port 1", "vllm"])
def test_words_that_name_no_server_give_none(text: str) -> None:
    assert commandline.parse(text.split(), FACTS).server is None


WORDS = st.sampled_from(
    ["MODEL", "--port", "--port=1", "-tp", "-tp=2", "3", "-1", "a b", "--eager", "--no-e", "--na",
     "--names", "--names=x", "--ma", "--max-n", "--nowhere", "-x", "-", "--pair", "", "--dtype"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=7))
@settings(max_examples=400)
def test_argparse_itself_agrees(words: list[str]) -> None:
    """Where argparse parses, each option has the values that we say; where we see no fault, it parses."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    for each in OPTIONS[1:]:
        if each.values == "none":
            parser.add_argument("--eager", action=argparse.BooleanOptionalAction)
        else:
            nargs = "+" if each.values == "some" else each.count if each.count > 1 else None
            parser.add_argument(*each.names, nargs=nargs)
    ours = walk(words, taken(Rules()))
    faulty = bool(ours.extra) or any(
        given.option is None or given.short or given.unwanted for given in ours.given
    )
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parsed = vars(parser.parse_args(words))
    except (SystemExit, argparse.ArgumentError):
        assert faulty, words
        return
    assert not faulty, words
    last = {given.option.name: given for given in ours.given if given.option is not None}
    for name, ours_given in last.items():
        if name not in ("--eager", "--level"):
            got = parsed[name.strip("-").replace("-", "_")]
            assert ([got] if isinstance(got, str) else got) == list(ours_given.values), words
    assert parsed["model_tag"] == (ours.positionals[0] if ours.positionals else None)


def test_the_record_and_the_answers_that_ship_are_read(tmp_path: Path) -> None:
    from dspatch.errors import PatchFormatError
    from dspatch.serve import answers, known

    for engine in ("vllm", "lmdeploy"):
        assert answers.load(engine)
        assert known.load(engine).releases
    assert not known.load("vllm", tmp_path / "none.toml").releases
    for wrong in ('fate = "lost"', 'fate = "never"\nextra = 1', ""):
        bad = tmp_path / f"{len(wrong)}.toml"
        bad.write_text(f'[[answers]]\nnames = ["--a"]\nsay = "x"\n{wrong}\n')
        with pytest.raises(PatchFormatError):
            answers.of_file(bad)


@pytest.mark.parametrize(
    ("text", "values", "told"),
    [
        ("--port 80", ("80",), "--port 80"),
        ("--port=80", ("80",), "--port=80"),
        ("--nowhere 3", ("3",), "--nowhere 3"),
        ("--nowhere=3", ("3",), "--nowhere=3"),
        ("--max=8", ("8",), "--max=8"),
        ("--eager", (), "--eager"),
    ],
)
def test_a_value_is_told_once_as_it_was_given(
    text: str, values: tuple[str, ...], told: str
) -> None:
    from dspatch.stages.show_serveflags import word

    found = one(text)
    assert (found.values, word(found)) == (values, told)


def test_a_row_says_what_to_do_in_one_line() -> None:
    from dspatch.stages.show_serveflags import said

    assert said(one("--gone 3")) == "renamed → --port"
    assert said(one("--prot 80")) == "no release that was read has it; nearest: --port"
    assert said(one("--port 80")) == ""
