"""Findings are read whole, or refused with file, line and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.audit import finding
from dspatch.audit.finding import SEVERITIES, Applies
from dspatch.errors import PatchFormatError
from tests import audit_kit
from tests.support import dedent


def load(text: str, folder: Path) -> finding.Finding:
    (place,) = audit_kit.write(folder, text).glob("vllm/*.toml")
    return finding.load(place, "vllm", {})


def test_a_finding_is_read_whole(tmp_path: Path) -> None:
    found = load(audit_kit.REFUSED, tmp_path)
    assert found.id == "vllm-cpu-refused"
    assert found.severity == "crash"
    assert found.applies == Applies(families=("mla",), targets=("cpu",))
    assert [(each.rev, each.has) for each in found.tested] == [("v0.9.0", True), ("v0.11.0", False)]
    assert found.references == ("https://example.org/pull/1",)
    assert found.fix is None
    assert found.workaround == "VLLM_MLA_DISABLE=1"
    assert found.date.isoformat() == "2026-11-29"


def test_all_come_gravest_first(tmp_path: Path) -> None:
    found = finding.load_all("vllm", {}, audit_kit.write(tmp_path, *audit_kit.ALL))
    order = [SEVERITIES.index(each.severity) for each in found]
    assert order == sorted(order)
    assert len(found) == 3


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('severity = "crash"', 'severity = "bad"', "expected one of wrong, crash"),
        ('established = "run"', 'established = "guess"', "expected one of run, read"),
        ("date = 2026-11-29", 'date = "today"', "`date` must be a date"),
        ('id = "vllm-cpu-refused"', 'id = "cpu-refused"', "begins with `vllm-`"),
        ('what = "It raises', 'waht = "It raises', "unknown key `waht`"),
        ("latent attention\"\nsev", "latent attention.\"\nsev", "without a full stop"),
        ("https://example.org/pull/1", "pull 1", "is no https link"),
        ('families = ["mla"]', 'familes = ["mla"]', "unknown key `familes`"),
        ('targets = ["cpu"]', 'targets = ["gpu"]', "`gpu` is no target"),
        ('targets = ["cpu"]', 'cards = ["a100"]', "`a100` is no compute capability"),
        ('targets = ["cpu"]', 'facts = ["n_group"]', "is no condition"),
        ("contains = ", "contians = ", "unknown key `contians`"),
        ("file = ", "# file = ", "needs a `file`"),
        ("has = true", 'has = "yes"', "`has` must be a true or false"),
        ("[probe]", "[decides]", "`probe` (table) is missing"),
    ],
)  # fmt: skip
def test_a_malformed_finding_is_refused_where_it_is(
    old: str, new: str, told: str, tmp_path: Path
) -> None:
    text = dedent(audit_kit.REFUSED)
    assert old in text
    with pytest.raises(PatchFormatError) as caught:
        load(text.replace(old, new, 1), tmp_path)
    assert told in str(caught.value)
    assert ".toml, line" in caught.value.what


def test_a_finding_without_a_release_to_show_it_is_refused(tmp_path: Path) -> None:
    text = dedent(audit_kit.ABSENT).split("[[tested]]")[0]
    with pytest.raises(PatchFormatError, match="`tested` \\(list\\) is missing"):
        load(text, tmp_path)
    with pytest.raises(PatchFormatError, match="must name releases"):
        load("tested = []\n" + text, tmp_path)
