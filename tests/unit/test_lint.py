"""Lint of patch folders: every rule with a planted fault, and a series that keeps them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import paths, series
from dspatch.carry.lint import lint
from dspatch.carry.lint.lint import Fault
from tests.support import PATCH, TEMPLATE, TRAITS, dedent, patch_folders

GOOD = PATCH.replace("never: a test", "never: upstream has no such platform").replace(
    "verb = \"insert-after\"\nfind = '''CPU_ATTN = \"mini.cpu_attn\"'''",
    "verb = \"replace\"\nfind = '''CPU_ATTN = \"mini.cpu_attn\"'''",
)
SECOND = dedent("""
    subject = "Serve sparse attention on CPU"
    reason = "The platform refuses it although a backend can be written."
    upstream = "https://github.com/mini/mini/pull/7"
    drop-when = "the platform no longer refuses"
    targets = ["cpu"]
    needs = ["has_registry"]

    [[edit]]
    file = "mini/platform.py"
    symbol = "CpuPlatform.backend"
    verb = "replace"
    find = '''raise NotImplementedError("Sparse is not supported on CPU.")'''
    text = '''return "CPU_SPARSE"'''
""")


@pytest.fixture(autouse=True)
def _data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The patches of this test are all that ship, but for the test of those that do."""
    if "engine" not in request.fixturenames:
        monkeypatch.setenv("DSPATCH_DATA", str(tmp_path))


def faults(root: Path, patches: dict[str, str], traits: str = TRAITS) -> list[Fault]:
    return list(lint.of_folders(patch_folders(root, patches, traits)))


def test_a_series_that_keeps_the_rules_has_no_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, {"cpu-mla": GOOD, "cpu-sparse": SECOND}) == []


REASON = "The platform refuses it although a backend can be written."
PLANTED = {
    "subject too long": ("subject", '"Serve MLA on CPU"', f'"{"Serve MLA " * 8}"', "characters"),
    "subject a sentence": ("subject", '"Serve MLA on CPU"', '"Serve MLA on CPU."', "full stop"),
    "reason repeats the subject": ("reason", REASON, "Serve MLA on CPU", "repeats the subject"),
    "reason too short": ("reason", REASON, "It is broken", "3 words"),
    "reason unfinished": ("reason", REASON, REASON + " TODO: explain", "`TODO` stands in it"),
    "upstream no change": (
        "upstream", "never: upstream has no such platform", "https://github.com/mini/mini", "no one change",
    ),
    "upstream without a why": (
        "upstream", "never: upstream has no such platform", "never: because", "must say why",
    ),
    "drop-when no condition": (
        "drop-when", "the platform no longer refuses", "someday", "no condition to look for",
    ),
    "no needs": ("needs", 'needs = ["refuses_mla"]\n', "", "apply to every checkout"),
    "version in an edit": (
        "version", 'text = \'\'\'CPU_MLA = "mini.cpu_mla"', 'text = \'\'\'CPU_MLA = "mini-1.2.3"', "1.2.3",
    ),
    "trailing spaces": ("whitespace", "text = '''return \"CPU_MLA\"'''", "text = '''x = 1  \nreturn x'''", "spaces"),
    "twins without a switch": (
        "reference-ops", 'targets = ["cpu"]', 'targets = ["cpu"]\nreference-ops = ["decode"]',
        "DSPATCH_REFERENCE_OPS",
    ),
    "a verb of one patch": (
        "verbs", 'verb = "replace"\nfind = \'\'\'CPU_ATTN', 'verb = "insert-after"\nfind = \'\'\'CPU_ATTN',
        "`insert-after`",
    ),
    "a waiver without a reason": (
        "waive", "\n[[file]]", '\n[[waive]]\nsymbol = "mini.x"\nreason = "fine"\n\n[[file]]', "no real reason",
    ),
    "two waivers of one symbol": (
        "waive", "\n[[file]]",
        '\n[[waive]]\nsymbol = "mini.x"\nreason = "it does not matter here"\n' * 2 + "\n[[file]]", "waived twice",
    ),
    "the same edit twice": (
        "overlap", "\n[[edit]]\nfile = \"mini/platform.py\"",
        "\n[[edit]]\nfile = \"mini/platform.py\"\nsymbol = \"CpuPlatform.backend\"\nverb = \"replace\"\n"
        "find = '''raise NotImplementedError(\"MLA is not supported on CPU.\")'''\ntext = '''pass'''\n"
        "\n[[edit]]\nfile = \"mini/platform.py\"",
        "two edits `replace` the same code in `CpuPlatform.backend` of mini/platform.py",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    rule, old, new, said = PLANTED[name]
    assert old in GOOD
    found = faults(tmp_path, {"cpu-mla": GOOD.replace(old, new, 1), "cpu-sparse": SECOND})
    mine = [fault for fault in found if fault.patch]
    assert [(f.rule, f.patch, f.where) for f in mine] == [(rule, "cpu-mla", "cpu-mla/patch.toml")]
    assert said in mine[0].what
    assert mine[0].next


def test_templates_and_traits_that_nothing_uses_are_found(tmp_path: Path) -> None:
    (tmp_path / "templates/mini").mkdir(parents=True)
    (tmp_path / "templates/mini/lost.py.j2").write_text("x = 1\n")
    more = TRAITS + '\n[lost]\nwhat = "nobody asks"\nfile = "mini/x.py"\n'
    found = faults(tmp_path, {"cpu-mla": GOOD, "cpu-sparse": SECOND}, more)
    assert [(f.rule, f.patch, f.where) for f in found] == [
        ("unused", "", "lost.py.j2"),
        ("unused", "", "traits.toml"),
    ]
    assert "`lost`" in found[1].what


def test_a_trait_that_only_another_trait_asks_is_used(tmp_path: Path) -> None:
    more = TRAITS.replace("refuses_mla", "inner") + dedent("""
        [refuses_mla]
        what = "asked"
        all = [{ trait = "inner" }]
    """)
    assert faults(tmp_path, {"cpu-mla": GOOD, "cpu-sparse": SECOND}, more) == []


def test_a_template_with_many_branches_or_a_version_is_found(tmp_path: Path) -> None:
    loaded = patch_folders(tmp_path, {"cpu-mla": GOOD, "cpu-sparse": SECOND})
    branch = "<% if traits.has_registry %>\nx = 1\n<% endif %>\n"
    template = tmp_path / "templates/mini/cpu_mla.py.j2"
    template.write_text(TEMPLATE + branch * 3)
    assert list(lint.of_folders(loaded)) == []
    template.write_text(TEMPLATE + branch * 4)
    assert [(f.rule, f.where) for f in lint.of_folders(loaded)] == [("branches", "cpu_mla.py.j2")]
    template.write_text(TEMPLATE + "x = ${ 1 if traits.has_registry else 2 }\n" * 4)
    assert [(f.rule, f.where) for f in lint.of_folders(loaded)] == [("branches", "cpu_mla.py.j2")]
    template.write_text('if version >= "0.27.1": ...  \n')
    assert [f.rule for f in lint.of_folders(loaded)] == ["version", "whitespace"]


DIFF = """\
diff --git a/mini/platform.py b/mini/platform.py
index {old}..{new} 100644
--- a/mini/platform.py
+++ b/mini/platform.py
@@ -1,1 +1,2 @@
 import os
+import re
"""
FORM_ONLY = GOOD.split("\n[[file]]")[0] + "\n"


@pytest.mark.parametrize(
    ("diff", "rule", "said"),
    [
        (
            DIFF.format(old="1234567", new="89abcde"),
            "full-index",
            "mini/platform.py: no full blob ids",
        ),
        (DIFF.format(old="1" * 40, new="2" * 40), "blobs", "nobody has the files of v1.0"),
        ("--- a/x\n+++ b/x\n@@ broken @@\n", "form", "it cannot be read"),
    ],
)
def test_a_form_that_no_merge_could_use_is_found(
    diff: str, rule: str, said: str, tmp_path: Path
) -> None:
    patch_folders(tmp_path, {"cpu-mla": GOOD, "cpu-sparse": SECOND})
    (tmp_path / "patches/mini/as-diff").mkdir()
    (tmp_path / "patches/mini/as-diff/v1.0.diff").write_text(diff)
    patches = {"cpu-mla": GOOD, "cpu-sparse": SECOND, "as-diff": FORM_ONLY}
    found = faults(tmp_path, patches)
    assert [(f.rule, f.where) for f in found] == [(rule, "as-diff/v1.0.diff")]
    assert said in found[0].what


def test_a_form_on_a_file_that_git_has_is_no_fault(tmp_path: Path) -> None:
    from dspatch.checkout import cache_of
    from dspatch.git import Change, NewCommit

    with cache_of("mini") as repo:
        change = Change(path="mini/platform.py", data=b"import os\n")
        repo.write_commits("refs/x", None, [NewCommit(message="x", changes=[change])])
        blob = repo.entries("refs/x")["mini/platform.py"].blob
    (tmp_path / "patches/mini/as-diff").mkdir(parents=True)
    (tmp_path / "patches/mini/as-diff/v1.0.diff").write_text(DIFF.format(old=blob, new="2" * 40))
    assert faults(tmp_path, {"cpu-mla": GOOD, "cpu-sparse": SECOND, "as-diff": FORM_ONLY}) == []


@pytest.mark.parametrize("engine", ["vllm", "lmdeploy"])
def test_the_shipped_patches_keep_the_rules(engine: str) -> None:
    shipped = series.load(engine, paths.data("patches"), paths.data("templates"))
    assert list(lint.of_folders(shipped)) == []
