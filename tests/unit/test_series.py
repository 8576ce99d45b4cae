"""Patch folders: what is read, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.errors import PatchFormatError, UnknownEngineError
from dspatch.outputformat import NONE
from dspatch.series import EVERY, Series, load
from dspatch.traits import Traits
from tests.support import PATCH, PLATFORM, load_series, patch_folders

MLA_ONLY = PATCH.replace("needs =", 'families = ["mla"]\nneeds =')


def test_a_series_is_read_in_order(tmp_path: Path) -> None:
    series = patch_folders(tmp_path, {"b": PATCH, "a": PATCH})
    assert [patch.name for patch in series.patches] == ["b", "a"]
    patch = series.patch("a")
    assert patch.targets == ("cpu",)
    assert [edit.verb for edit in patch.edits] == ["replace", "insert-after"]
    assert "Drop-when: the platform no longer refuses" in patch.message


def test_the_digest_moves_with_every_byte(tmp_path: Path) -> None:
    series = patch_folders(tmp_path)
    before = (series.digest, series.patch_digest(series.patches[0]))
    template = tmp_path / "templates" / "mini" / "cpu_mla.py.j2"
    template.write_text(template.read_text() + "# more\n")
    again = load_series(tmp_path)
    assert again.digest != before[0]
    assert again.patch_digest(again.patches[0]) != before[1]


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ('targets = ["cpu"]', 'targets = ["tpu"]', 5, "`targets` must be one or more of"),
        ('subject = "Serve', 'subjct = "Serve', 1, "unknown key `subjct`"),
        ('upstream = "never: a test"', 'upstream = "soon"', 3, "`upstream` must be an https link"),
        ('reason = "The', 'reason = ""\nx = "The', 3, "unknown key `x`"),
        ('needs = ["refuses_mla"]', 'needs = ["refuses"]', 6, "`refuses` is no trait"),
        ('verb = "replace"', 'verb = "swap"', 15, "`verb` must be one of"),
        ('template = "cpu_mla.py.j2"', 'template = "x.j2"', 10, "template x.j2 does not exist"),
        ('path = "mini/cpu_mla.py"', 'path = "../x.py"', 9, "must be a path inside the tree"),
        ('path = "mini/cpu_mla.py"', 'path = "/x.py"', 9, "must be a path inside the tree"),
    ],
)
def test_malformed_patch(old: str, new: str, line: int, expected: str, tmp_path: Path) -> None:
    assert old in PATCH
    with pytest.raises(PatchFormatError) as error:
        patch_folders(tmp_path, {"cpu-mla": PATCH.replace(old, new)})
    assert expected in error.value.what
    assert f"patch.toml, line {line}:" in error.value.what


def test_a_patch_that_the_series_does_not_name_is_refused(tmp_path: Path) -> None:
    patch_folders(tmp_path, {"a": PATCH, "b": PATCH})
    (tmp_path / "patches" / "mini" / "series").write_text("a\n")
    with pytest.raises(PatchFormatError, match="patch `b` is not listed"):
        load_series(tmp_path)


def test_a_name_without_a_patch_and_a_name_twice_are_refused(tmp_path: Path) -> None:
    patch_folders(tmp_path)
    listing = tmp_path / "patches" / "mini" / "series"
    listing.write_text("# order\ncpu-mla\ngone\n")
    with pytest.raises(PatchFormatError, match=r"line 3: there is no gone/patch\.toml"):
        load_series(tmp_path)
    listing.write_text("cpu-mla\ncpu-mla\n")
    with pytest.raises(PatchFormatError, match="line 2: `cpu-mla` is listed twice"):
        load_series(tmp_path)


def test_an_engine_without_a_series_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UnknownEngineError):
        load("other", tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("patch", "source", "target", "families", "status"),
    [
        (PATCH, PLATFORM, "cpu", [frozenset({"mla"})], "applies"),
        (PATCH, PLATFORM, "cuda", [frozenset({"mla"})], "other target"),
        (PATCH, "x = 1\n", "cpu", [frozenset({"mla"})], "not needed"),
        (MLA_ONLY, PLATFORM, "cpu", [frozenset({"gqa"})], "other variant"),
        (PATCH.replace('["refuses_mla"]', '["!refuses_mla"]'), PLATFORM, "cpu", [], "not needed"),
    ],
)
def test_plan(
    patch: str,
    source: str,
    target: str,
    families: list[frozenset[str]],
    status: str,
    tmp_path: Path,
) -> None:
    series = patch_folders(tmp_path, {"cpu-mla": patch})
    facts = Traits(series.traits, {"mini/platform.py": source.encode()}.get)
    planned = series.plan(facts, target, families)[0]
    assert planned.status == status
    assert planned.applies or planned.why
    outside = series.outside(series.patches[0], target, families)
    assert outside == (planned if status in ("other target", "other variant") else None)


def test_a_patch_that_is_asked_for_is_in_no_other_job(tmp_path: Path) -> None:
    series = patch_folders(tmp_path, {"cpu-mla": 'option = "with"\n' + PATCH, "other": PATCH})
    facts = Traits(series.traits, {"mini/platform.py": PLATFORM.encode()}.get)

    def planned(asked: Series) -> dict[str, str]:
        found = asked.plan(facts, "cpu", [frozenset({"mla"})])
        return {item.patch.name: item.status for item in found}

    assert planned(series) == {"cpu-mla": "not asked for", "other": "applies"}
    assert series.plan(facts, "cpu", [])[0].why == "--with cpu-mla asks for it"
    for extra in (["cpu-mla"], [EVERY]):
        asked = series.asking(None, extra)
        assert planned(asked) == {"cpu-mla": "applies", "other": "applies"}
        assert asked.digest != series.digest
    assert series.asking(None, []).digest == series.digest
    for name in ("other", "no-such"):
        with pytest.raises(PatchFormatError):
            series.asking(None, [name])


def test_a_format_is_asked_for_by_its_file(tmp_path: Path) -> None:
    series = patch_folders(tmp_path, {"cpu-mla": 'option = "output-format"\n' + PATCH})
    facts = Traits(series.traits, {"mini/platform.py": PLATFORM.encode()}.get)
    assert series.plan(facts, "cpu", [])[0].why == "--output-format FILE asks for it"
    assert series.asking(NONE, []).plan(facts, "cpu", [])[0].applies
    with pytest.raises(PatchFormatError, match="has an option of its own"):
        series.asking(None, ["cpu-mla"])
    with pytest.raises(PatchFormatError, match="`option` must be one of output-format, with"):
        patch_folders(tmp_path / "odd", {"cpu-mla": 'option = "x"\n' + PATCH})
