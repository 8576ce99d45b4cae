"""Every finding on the real releases that it names: each has it, or has not, as its file says.

Sources are read by range and kept in the shared cache, so that a second run touches the network for
the list of releases only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from dspatch import series
from dspatch.audit import finding as findings
from dspatch.audit import judge
from dspatch.audit.finding import Finding
from dspatch.audit.finding import Tested as Entry
from dspatch.audit.origins import published
from dspatch.audit.source import Source
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Published
from dspatch.cli import cli

pytestmark = pytest.mark.e2e
SERIES = {engine: series.layered(engine) for engine in findings.engines()}
CASES = [
    (finding, entry)
    for engine, known in SERIES.items()
    for finding in findings.load_all(engine, known.traits)
    for entry in finding.tested
]
# Findings of one release in a row, so that its files are read and parsed once.
CASES.sort(key=lambda case: (case[0].engine, case[1].rev, case[1].native, str(case[0].probe)))


Opened = Callable[[Finding, Entry], Source]


@pytest.fixture(scope="module")
def known() -> dict[str, Published]:
    return {engine: releases.published(engine, prereleases=True, yanked=True) for engine in SERIES}


@pytest.fixture(scope="module")
def opened(known: dict[str, Published]) -> Iterator[Opened]:
    """The source of a case, which stays open for the next case of the same release."""
    stack = ExitStack()
    at: dict[tuple[str, str, bool], Source] = {}

    def open_one(finding: Finding, entry: Entry) -> Source:
        key = (finding.engine, entry.rev, entry.native)
        if key not in at:
            at.clear()
            stack.close()
            one = published(*key[:2], Traffic(), native=entry.native, among=known[finding.engine])
            at[key] = stack.enter_context(one)
        return at[key]

    with stack:
        yield open_one


@pytest.mark.parametrize(
    ("finding", "entry"), CASES, ids=lambda each: getattr(each, "id", None) or each.rev
)
def test_the_release_answers_as_the_finding_says(
    finding: Finding, entry: Entry, opened: Opened
) -> None:
    source = opened(finding, entry)
    answer = judge.one(finding, source, SERIES[finding.engine].traits)
    assert answer.state == ("yes" if entry.has else "no"), [*answer.why, *map(str, answer.evidence)]
    assert answer.evidence


@pytest.mark.parametrize("engine", SERIES)
def test_the_recorded_ranges_are_what_the_releases_say(engine: str) -> None:
    done = CliRunner().invoke(cli, ["audit", "--engine", engine, "--check-ranges", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["holds"] is True
