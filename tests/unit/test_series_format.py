"""The format of `series`: any file in it is read in order, any fault in it is named with its line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspatch import series
from dspatch.errors import PatchFormatError
from tests.support import write_form

QUICK = settings(max_examples=60)
DIFF = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), max_size=5, unique=True)
NOISE = st.sampled_from(["", "  ", "# a word", "\t# why", "#"])
AROUND = st.sampled_from(["{}", " {}", "{}  ", "{} # why", "\t{}\t# a, b"])


def layer(root: Path, names: list[str], text: str) -> Path:
    """A layer with those patches and that `series`."""
    folder = root / "patches/mini"
    folder.mkdir(parents=True)
    for name in names:
        write_form(folder / name, {"v1.0": DIFF})
    (folder / "traits.toml").write_text("")
    (folder / "series").write_text(text)
    return root


def load(root: Path) -> series.Series:
    return series.load("mini", root / "patches", root / "templates")


def lines(draw: st.DrawFn, names: list[str]) -> list[str]:
    """The lines of a series: names as somebody may write them, with other lines between."""
    found: list[str] = []
    for name in names:
        found += draw(st.lists(NOISE, max_size=2))
        found.append(draw(AROUND).format(name))
    return found + draw(st.lists(NOISE, max_size=2))


@QUICK
@given(data=st.data(), names=NAMES, end=st.booleans())
def test_any_series_is_read_in_its_order(data: st.DataObject, names: list[str], end: bool) -> None:
    text = "\n".join(lines(data.draw, names)) + "\n" * end
    with tempfile.TemporaryDirectory() as folder:
        assert [patch.name for patch in load(layer(Path(folder), names, text)).patches] == names


@QUICK
@given(
    data=st.data(), names=NAMES.filter(bool), fault=st.sampled_from(["gone", "twice", "unlisted"])
)
def test_any_fault_is_named(data: st.DataObject, names: list[str], fault: str) -> None:
    written = lines(data.draw, names)
    bad = "zz-gone" if fault == "gone" else data.draw(st.sampled_from(names))
    if fault == "unlisted":
        written = [line for line in written if line.split("#")[0].strip() != bad]
    else:
        written.append(bad)
    with tempfile.TemporaryDirectory() as folder:
        root = layer(Path(folder), names, "\n".join(written) + "\n")
        with pytest.raises(PatchFormatError) as error:
            load(root)
    assert f"`{bad}`" in error.value.what or f"{bad}/" in error.value.what
    if fault != "unlisted":
        assert f"line {len(written)}:" in error.value.what
