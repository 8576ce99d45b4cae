"""Of each proven pin, every finding of a wrong result or a crash was seen by running it, or says why it was not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch import series
from dspatch.audit import confirmed, recorded
from dspatch.audit import finding as findings
from dspatch.audit.finding import Finding
from dspatch.errors import PatchFormatError
from tests import audit_kit
from tests.support import dedent

ROOT = Path(__file__).parents[2]
ALL = [
    each
    for engine in findings.engines()
    for each in findings.load_all(engine, series.layered(engine).traits)
]
PLACES = [(engine, rev) for engine, revs in audit_kit.PROVEN.items() for rev in revs]
every = pytest.mark.parametrize("finding", ALL, ids=lambda each: each.id)


def owing(engine: str, rev: str, among: Iterable[Finding]) -> Iterator[str]:
    """The grave findings that a release is said to have, that were not run and do not say why."""
    known, version = recorded.load(engine), rev.removeprefix("v")
    for each in among:
        grave = each.engine == engine and each.severity in ("wrong", "crash")
        if grave and known.state(each.id, version) != "no":
            ran = confirmed.on(each.confirmed, version)
            if not (ran and ran.has) and not any(rev in row.revs for row in each.unshown):
                yield each.id


@pytest.mark.parametrize(("engine", "rev"), PLACES, ids=lambda each: each)
def test_nothing_grave_is_owing(engine: str, rev: str) -> None:
    assert list(owing(engine, rev, ALL)) == []


def test_a_finding_that_nobody_ran_is_owing() -> None:
    without = [replace(each, confirmed=(), unshown=()) for each in ALL]
    owed = [name for place in PLACES for name in owing(*place, without)]
    assert "vllm-cpu-rope-strides" in owed
    assert "vllm-triton-mla-lse-rounded" in owed
    assert len(owed) > 20


@every
def test_running_and_reading_say_the_same(finding: Finding) -> None:
    known = recorded.load(finding.engine)
    for row in finding.confirmed:
        for rev in row.revs:
            state = known.state(finding.id, rev.removeprefix("v"))
            assert state in (None, "yes" if row.has else "no"), rev


@every
def test_seen_run_is_said_of_what_was(finding: Finding) -> None:
    assert finding.established == "run" or not any(row.has for row in finding.confirmed)
    for row in finding.confirmed:
        assert (ROOT / row.by).is_file()
        assert not finding.fix or not row.has or row.patched not in (None, row.stock)


def test_the_numbers_are_those_that_are_stated() -> None:
    seen = [
        (row.has, recorded.load(each.engine).state(each.id, rev.removeprefix("v")) == "yes")
        for each in ALL
        for row in each.confirmed
        for rev in row.revs
        if rev in audit_kit.PROVEN[each.engine]
    ]
    right, false, missed = (seen.count(key) for key in ((True, True), (False, True), (True, False)))
    told = (
        f"{len(seen)} outcomes, {right + missed} of them faults: "
        f"precision {right / (right + false):.2f}, recall {right / (right + missed):.2f}"
    )
    assert told in " ".join((ROOT / "benchmarks" / "RESULTS.md").read_text().split()), told


def test_what_ran_is_found_by_the_version() -> None:
    rope = next(each for each in ALL if each.id == "vllm-cpu-rope-strides")
    assert (ran := confirmed.on(rope.confirmed, "0.32.0")) is not None
    assert "patched: as in PyTorch" in ran.words
    assert confirmed.on(rope.confirmed, "0.31.0") is None
    assert confirmed.on(rope.confirmed, None) is None


RAN = """
[[confirmed]]
revs = ["v0.9.0"]
by = "tests/unit/test_audit_confirmed.py"
stock = "it raises"
date = 2026-11-30

[[unshown]]
revs = ["v0.8.0"]
why = "no card"
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('revs = ["v0.9.0"]', "revs = []", "line 29: `revs` must name releases"),
        ('stock = "it raises"', 'shown = "it raises"', "unknown key `shown`"),
        ("date = 2026-11-30", 'date = "today"', "`date` must be a date"),
        ('why = "no card"', "", "`why` (string) is missing"),
        ("[[unshown]]", "[unshown]", "`unshown` must be a list"),
    ],
)
def test_a_malformed_table_is_refused_where_it_is(
    old: str, new: str, told: str, tmp_path: Path
) -> None:
    text = dedent(audit_kit.REFUSED) + RAN
    assert old in text
    (place,) = audit_kit.write(tmp_path, text).glob("vllm/*.toml")
    read = findings.load(place, "vllm", {})
    assert (read.confirmed[0].has, read.confirmed[0].patched) == (True, None)
    place.write_text(place.read_text().replace(old, new))
    with pytest.raises(PatchFormatError) as raised:
        findings.load(place, "vllm", {})
    assert told in str(raised.value)
