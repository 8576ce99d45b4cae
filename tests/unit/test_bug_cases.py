"""The list of known bugs is complete, what it names is there, and some of them have their right value here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dspatch import series, variants
from dspatch.audit import finding
from dspatch.audit.finding import Finding
from dspatch.conformance import checks, faults, small
from dspatch.conformance.api.checks import ALL
from dspatch.conformance.checks import cache
from dspatch.conformance.checks.seen import Seen

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "bug-cases.md"
ROW = re.compile(r"\| (B\d+) \| (.+) \| (.+) \|")
NAMED = re.compile(r"(check|fault|form|server|finding|test|proof) `([^`]+)`")
GAPS = {4, 12, 16, 36, 40, 48, 52, 56, 60, 64, 68, 72, 76, 80, 84, 92, 100}  # never given to a bug
OF_ENGINES = ("engine.start", "engine.run", "checkpoint.whole")


def rows() -> dict[str, str]:
    """Where each bug shows, by its id."""
    found = [ROW.fullmatch(line) for line in PAGE.read_text().splitlines()]
    return {match[1]: match[3] for match in found if match}


def findings() -> list[Finding]:
    """Those of both engines."""
    engines = ("vllm", "lmdeploy")
    return [f for e in engines for f in finding.load_all(e, dict(series.layered(e).traits))]


def known(kind: str) -> set[str]:
    """All that may be named as this."""
    if kind == "finding":
        return {found.id for found in findings()}
    return {
        "check": {*checks.CHECKS, *OF_ENGINES},
        "fault": {fault.name for fault in faults.FAULTS},
        "form": set(small.rules()["forms"]),
        "server": {check.id for check in ALL},
    }[kind]


def test_every_bug_is_listed_once() -> None:
    numbers = [
        int(match[1][1:]) for line in PAGE.read_text().splitlines() if (match := ROW.match(line))
    ]
    assert numbers == [number for number in range(1, 108) if number not in GAPS]
    assert len(numbers) == 90


def test_every_bug_is_shown_somewhere_or_says_why_not() -> None:
    for bug, where in rows().items():
        assert NAMED.search(where) or "not here: " in where, bug


@pytest.mark.parametrize("kind", ["check", "fault", "form", "server", "finding"])
def test_what_the_list_names_is_there(kind: str) -> None:
    named = {
        name for where in rows().values() for what, name in NAMED.findall(where) if what == kind
    }
    assert named
    assert named <= known(kind)


def test_tests_and_proofs_that_the_list_names_are_there() -> None:
    for where in rows().values():
        for kind, name in NAMED.findall(where):
            if kind == "proof":
                assert (ROOT / name).is_file()
            if kind == "test":
                path, _, function = name.partition("::")
                tree = ast.parse((ROOT / path).read_text())
                there = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
                assert function == "*" or function in there, name


def test_the_list_and_the_findings_name_each_other() -> None:
    listed = {
        (name, bug) for bug, where in rows().items() for kind, name in NAMED.findall(where)
        if kind == "finding"
    }  # fmt: skip
    stated = {(found.id, bug) for found in findings() for bug in found.bug_cases}
    assert listed == stated


# B103, B105: what one token takes in bfloat16 with latent attention, and what full heads would take.
@pytest.mark.parametrize(
    ("name", "layers", "right"),
    [("deepseek-v2-lite", 27, 31104), ("deepseek-v2", 60, 69120), ("deepseek-v3", 61, 70272)],
)
def test_bytes_a_token_are_those_of_the_published_models(
    name: str, layers: int, right: int
) -> None:
    facts = {k: v for k, v in variants.variant(name).facts.items() if v is not None}
    assert facts["num_hidden_layers"] == layers
    heads = facts["num_attention_heads"] * (facts["qk_nope_head_dim"] + facts["qk_rope_head_dim"])

    def judged(bytes_per_token: float) -> float | None:
        own = {"cache": {"bytes_per_token": bytes_per_token, "kinds": ["MLAAttentionSpec"]}}
        seen = Seen(variant=name, dtype="bfloat16", config=facts, facts=own, measures={})
        return cache.latent(seen).measured

    assert judged(right) == 0
    assert judged(2 * 2 * heads * layers) == 2 * 2 * heads * layers - right > 9 * right
