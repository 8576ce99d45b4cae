"""Every finding that ships can be read, says whom it concerns, and names patches and releases that exist."""

from __future__ import annotations

import pytest
from packaging.version import Version

from dspatch import series, variants
from dspatch.audit import finding as findings
from dspatch.audit import recorded
from dspatch.audit.finding import Finding

SERIES = {engine: series.layered(engine) for engine in findings.engines()}
ALL = [each for engine in SERIES for each in findings.load_all(engine, SERIES[engine].traits)]
FAMILIES = frozenset().union(*(each.families for each in variants.table().values()))

every = pytest.mark.parametrize("finding", ALL, ids=lambda each: each.id)


@every
def test_its_patch_is_in_the_series(finding: Finding) -> None:
    if finding.fix is not None:
        patch = SERIES[finding.engine].patch(finding.fix)
        wanted = set(finding.applies.targets) & {"cpu", "cuda"}
        assert not wanted or wanted & set(patch.targets)


@every
def test_it_names_models_that_exist(finding: Finding) -> None:
    assert set(finding.applies.families) <= FAMILIES
    assert set(finding.applies.variants) <= set(variants.table())
    concerned = [
        each
        for each in variants.table().values()
        if set(finding.applies.families) <= each.families
        and (not finding.applies.variants or each.name in finding.applies.variants)
    ]
    assert concerned, "no model meets its families and variants"


@every
def test_it_was_seen_on_a_release_that_has_it_and_on_one_that_has_not(finding: Finding) -> None:
    assert {each.has for each in finding.tested} == {True, False}
    revs = [Version(each.rev) for each in finding.tested]
    assert len(set(revs)) == len(revs)


@every
def test_it_is_told_in_words_of_its_own(finding: Finding) -> None:
    assert len(finding.what) > 60
    assert finding.title.lower() not in finding.what.lower()
    assert "TODO" not in finding.what


@every
def test_what_is_recorded_agrees_with_what_was_tested(finding: Finding) -> None:
    known = recorded.load(finding.engine)
    if not known.releases:
        pytest.skip("nothing is recorded yet")
    assert known.knows(finding.id), "run dspatch audit --write-ranges"
    for each in finding.tested:
        state = known.state(finding.id, str(Version(each.rev)))
        # A release outside of those of interest was not read; native sources are not in wheels.
        if state is not None and not each.native:
            assert state == ("yes" if each.has else "no"), each.rev


def test_ids_are_of_one_engine_each() -> None:
    assert len({each.id for each in ALL}) == len(ALL)
