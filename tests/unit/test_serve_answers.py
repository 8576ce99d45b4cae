"""The answers that are written by hand, held against the record of all releases and against the findings."""

from __future__ import annotations

import pytest

from dspatch import series
from dspatch.audit import finding as findings
from dspatch.audit import recorded
from dspatch.serve import answers, engines, known
from dspatch.serve.answers import Answer
from dspatch.serve.known import Kind, Known

KINDS: tuple[Kind, ...] = ("options", "environment", "metrics", "hidden")
FACTS = {engine: engines.facts(engine) for engine in ("vllm", "lmdeploy")}
EVERY = [(engine, one) for engine in FACTS for one in dict.fromkeys(answers.load(engine).values())]


def having(record: Known, name: str) -> set[str]:
    """The releases that have a name of whatever kind, a value behind it left out."""
    base = name.split()[0].partition("=")[0]
    base = base.partition(".")[0] if base.startswith("--") else base
    return {version for kind in KINDS for version in record.releases_of(kind, base)}


@pytest.mark.parametrize(
    ("engine", "answer"), EVERY, ids=lambda each: getattr(each, "names", [each])[0]
)
def test_an_answer_is_true_of_the_releases(engine: str, answer: Answer) -> None:
    record = known.load(engine)
    every = set(record.releases)
    for name in answer.names:
        there = having(record, name)
        if answer.fate == "never":
            assert not there, (name, record.ranges("options", name))
        elif not name.startswith(FACTS[engine].metric_prefix) or there:
            assert there, name
            assert there < every, name
    if answer.fate != "never":
        assert any(having(record, name) for name in answer.names)
    for name in answer.instead:
        assert having(record, name), name
        if answer.fate == "renamed":
            # Where the old name is gone, the new one is there.
            last = max(record.releases.index(v) for n in answer.names for v in having(record, n))
            assert last + 1 == len(record.releases) or having(record, name) & set(
                record.releases[last + 1 :]
            )


@pytest.mark.parametrize("engine", FACTS)
def test_a_record_is_written_as_it_was_read(engine: str) -> None:
    for record in (known, recorded):
        text = record.path_of(engine).read_text(encoding="utf-8")
        assert record.written(engine, record.load(engine)) == text


@pytest.mark.parametrize(("engine", "answer"), [each for each in EVERY if each[1].finding])
def test_an_answer_and_its_finding_say_the_same(engine: str, answer: Answer) -> None:
    """One knowledge: the finding exists, and where it holds, the name is not there to be used."""
    (finding,) = [
        each
        for each in findings.load_all(engine, series.layered(engine).traits)
        if each.id == answer.finding
    ]
    ranges = recorded.load(engine)
    record = known.load(engine)
    holds = [v for v in record.releases if ranges.state(finding.id, v) == "yes"]
    assert holds
    for name in answer.names:
        visible = {
            v
            for kind in ("options", "environment", "metrics")
            for v in record.releases_of(kind, name)
        }
        assert not visible & set(holds), (name, sorted(visible & set(holds)))
