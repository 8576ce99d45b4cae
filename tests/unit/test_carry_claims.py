"""Documents written from the matrix, and held against it: every planted contradiction is named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.carry.matrix import claimcheck, claims, spans
from dspatch.carry.matrix.matrix import Cell

RELEASES = ("0.9.0", "0.9.0.1", "0.9.1", "0.10.0", "0.10.1.post1")
LETTERS = {
    "s": "semantic", "n": "not needed", "c": "conflict", "x": "not measured", "u": "upstreamed",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    patch: str
    target: str
    cells: dict


def row(patch, letters, target="cpu", why="", native=()):
    cells = {
        version: Cell(
            patch=patch, target=target, verdict=LETTERS[letter],
            why=why if letter in "cx" else "", native=native if letter == "x" else (),
        )
        for version, letter in zip(RELEASES, letters, strict=True)
    }  # fmt: skip
    return Row(patch=patch, target=target, cells=cells)


ROWS = [
    row("a", "nnssn"),
    row("b", "cccss", why="`x | y` is <gone>"),
    row("b", "cccss", target="cuda", why="`x | y` is <gone>"),
    row("d", "nxxxn", why="csrc", native=("csrc/k.cpp",)),
]
BRIEF = "# Title\n\n<!-- dspatch matrix vllm brief --><!-- /dspatch matrix vllm brief -->\n\nEnd.\n"


def differences(document, rows, releases=RELEASES):
    found, unread = [], 0
    for block in claims.blocks(document, "vllm"):
        more, open_cells = claimcheck.differences(block, releases, rows)
        found += map(str, more)
        unread += open_cells
    return found, unread


def test_a_document_is_written_in_ranges():
    document = claims.written("# Title\n", "vllm", RELEASES, ROWS)
    assert document == (
        "# Title\n\n## vllm\n\n<!-- dspatch matrix vllm -->\n"
        "5 releases, 0.9.0 to 0.10.1.post1.\n\n"
        "| patch | target | releases | verdict | why |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| `a` | cpu | 0.9.0–0.9.0.1 | not needed |  |\n"
        "| `a` | cpu | 0.9.1–0.10.0 | semantic |  |\n"
        "| `a` | cpu | 0.10.1.post1 | not needed |  |\n"
        "| `b` | cpu, cuda | 0.9.0–0.9.1 | conflict | `x \\| y` is &lt;gone> |\n"
        "| `b` | cpu, cuda | 0.10.0–0.10.1.post1 | semantic |  |\n"
        "| `d` | cpu | 0.9.0 | not needed |  |\n"
        "| `d` | cpu | 0.9.0.1–0.10.0 | not measured | csrc |\n"
        "| `d` | cpu | 0.10.1.post1 | not needed |  |\n"
        "<!-- /dspatch matrix vllm -->\n"
    )


def test_what_was_written_holds_and_is_written_again_to_the_same_bytes():
    document = claims.written(claims.written(BRIEF, "vllm", RELEASES, ROWS), "lmdeploy", (), [])
    assert claims.written(document, "vllm", RELEASES, ROWS) == document
    full = claims.written("", "vllm", RELEASES, ROWS)
    assert differences(document + full, ROWS) == ([], 6)
    assert document.startswith("# Title\n")
    assert "\n\nEnd.\n" in document


def test_a_brief_block_names_only_where_a_patch_applies():
    document = claims.written(BRIEF, "vllm", RELEASES, ROWS)
    assert "| `a` | cpu | 0.9.1–0.10.0 |\n" in document
    assert "| `d` | cpu | no release |\n" in document
    assert "conflict" not in document


def test_one_engine_leaves_the_block_of_another_alone():
    document = claims.written("", "lmdeploy", RELEASES, ROWS)
    both = claims.written(document, "vllm", RELEASES[:2], [row("a", "ssnnn")])
    assert document.rstrip("\n") in both
    assert claims.blocks(document, "vllm") == []
    assert "There are no patches." in claims.written("", "vllm", RELEASES, [])


# -- planted contradictions ------------------------------------------------------------------------

FULL = claims.written("", "vllm", RELEASES, ROWS)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "0.9.1–0.10.0 | semantic", "0.9.1 | semantic",
            "a on cpu, 0.10.0: claimed nothing, measured semantic",
        ),
        (
            "0.9.1–0.10.0 | semantic", "0.9.1–0.10.0 | conflict",
            "a on cpu, 0.9.1–0.10.0: claimed conflict, measured semantic",
        ),
        (
            "| `b` | cpu, cuda | 0.9.0–0.9.1 | conflict", "| `b` | cpu | 0.9.0–0.9.1 | conflict",
            "b on cuda, 0.9.0–0.9.1: claimed nothing, measured conflict (`x | y` is <gone>)",
        ),
        (
            "| `a` | cpu | 0.9.0–0.9.0.1 |", "| `a` | cpu | 0.9.0–0.9.1 |",
            "a on cpu, 0.9.1: claimed not needed and semantic, measured semantic",
        ),
        (
            "| `a` | cpu | 0.10.1.post1", "| `z` | cpu | 0.10.1.post1",
            "z on cpu, 0.10.1.post1: claimed not needed, measured nothing",
        ),
    ],
)  # fmt: skip
def test_a_false_claim_is_named(old, new, told):
    assert old in FULL
    found, _ = differences(FULL.replace(old, new), ROWS)
    assert told in found


def test_a_false_brief_claim_is_named():
    document = claims.written(BRIEF, "vllm", RELEASES, ROWS)
    wrong = document.replace("| `a` | cpu | 0.9.1–0.10.0 |", "| `a` | cpu | 0.9.0–0.10.0 |")
    wrong = wrong.replace("| `d` | cpu | no release |", "| `d` | cpu | 0.10.1.post1 |")
    found, unread = differences(wrong, ROWS)
    assert found == [
        "a on cpu, 0.9.0–0.9.0.1: claimed applies, measured does not apply",
        "d on cpu, 0.10.1.post1: claimed applies, measured does not apply",
    ]
    assert unread == 3


def test_a_changed_measurement_is_named_with_its_reason():
    changed = [row("a", "nnscn", why="moved"), *ROWS[1:]]
    found, _ = differences(FULL, changed)
    assert found == ["a on cpu, 0.10.0: claimed semantic, measured conflict (moved)"]
    found, _ = differences(FULL, ROWS[1:])
    assert "a on cpu, 0.9.1–0.10.0: claimed semantic, measured nothing" in found
    found, _ = differences(FULL, [*ROWS, row("new", "sssss")])
    assert found == ["new on cpu, 0.9.0–0.10.1.post1: claimed nothing, measured semantic"]


def test_a_release_newer_than_the_document_is_no_contradiction():
    found, _ = differences(claims.written("", "vllm", RELEASES[:4], ROWS), ROWS)
    assert found == []
    found, _ = differences(FULL, ROWS, RELEASES[:4])  # taken back since
    assert found == []


def test_what_one_side_did_not_measure_is_counted_not_compared():
    native = [*ROWS[:3], row("d", "nssnn")]
    assert differences(FULL, native) == ([], 3)
    assert differences(claims.written("", "vllm", RELEASES, native), ROWS) == ([], 3)


def test_a_release_that_could_not_be_read_is_a_contradiction():
    unread = [row("a", "nnxsn", why="its server is down"), *ROWS[1:]]
    found, _ = differences(FULL, unread)
    assert found == [
        "a on cpu, 0.9.1: claimed semantic, measured not measured (its server is down)"
    ]


@pytest.mark.parametrize(
    "fault", [("0.9.1–0.10.0 | sem", "some | sem"), ("5 releases", "All releases")]
)
def test_a_block_that_cannot_be_read_is_an_error(fault):
    with pytest.raises(ValueError, match=r"range of releases|which releases"):
        differences(FULL.replace(*fault), ROWS)


# -- ranges ----------------------------------------------------------------------------------------

VERSIONS = [f"0.{minor}.{patch}" for minor in range(9, 13) for patch in range(3)]


@given(st.sets(st.sampled_from(VERSIONS)))
def test_ranges_read_back_are_the_releases(chosen):
    text = spans.runs(chosen, VERSIONS)
    assert set(spans.expand(text, VERSIONS) if text else ()) == chosen


@given(
    st.text(alphabet="nscxu", min_size=5, max_size=5),
    st.text(alphabet="nscxu", min_size=5, max_size=5),
)
def test_any_matrix_written_holds_and_any_other_does_not(letters, others):
    rows, changed = [row("a", letters)], [row("a", others)]
    for start in ("", BRIEF):
        document = claims.written(start, "vllm", RELEASES, rows)
        assert differences(document, rows)[0] == []
    differs = [a != b and "x" not in (a,) for a, b in zip(letters, others, strict=True)]
    found, _ = differences(claims.written("", "vllm", RELEASES, rows), changed)
    assert bool(found) == any(differs)


def test_long_reasons_are_cut_and_others_counted():
    assert claims.told([]) == ""
    assert claims.told(["one", "two", "three"]) == "one (and 2 more)"
    assert len(claims.told(["x" * 500])) == claims.WHY
