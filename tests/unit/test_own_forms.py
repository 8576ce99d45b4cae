"""Resolutions of patches that ship lie in the user's own layer when dspatch is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import paths, series
from dspatch.apply import apply_series
from dspatch.carry.editing import formfile
from tests.support import PLATFORM, Upstream, form_patch
from tests.unit.test_already import SERVED
from tests.unit.test_apply import VARIANT
from tests.unit.test_carry_upstreamed import change


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A patch that ships, and the folder of the user's own."""
    diff = change(tmp_path / "made", {"mini/platform.py": PLATFORM}, {"mini/platform.py": SERVED})
    form_patch(tmp_path, "held", {"1.0": diff.diff})
    monkeypatch.setenv("DSPATCH_DATA", str(tmp_path))
    monkeypatch.setenv("DSPATCH_PATCHES", str(tmp_path / "own"))
    return tmp_path / "own/mini"


def test_an_own_form_is_one_of_the_patch_that_ships(layers: Path) -> None:
    before = series.layered("mini")
    assert [form.made_on for form in before.patch("held").forms] == ["1.0"]
    (layers / "held").mkdir(parents=True)
    (layers / "held/2.0.diff").write_text("")
    (layers / "held/1.0.diff").write_text("")
    after = series.layered("mini")
    assert [form.made_on for form in after.patch("held").forms] == ["1.0", "2.0"]
    assert {form.path.parent for form in after.patch("held").forms} == {layers / "held"}
    assert after.digest != before.digest
    assert after.patch_digest(after.patch("held")) != before.patch_digest(before.patch("held"))
    (layers / "series").write_text("# nothing yet\n")
    assert len(series.layered("mini").patch("held").forms) == 2


def test_where_a_form_is_written(layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = series.layered("mini").patch("held")
    assert formfile.path(patch, "mini", "v2") == patch.folder / "v2.diff"
    monkeypatch.setattr(paths, "is_installed", lambda folder: True)
    assert formfile.path(patch, "mini", "v2") == layers / "held/v2.diff"


def test_forms_are_taken_back(layers: Path) -> None:
    new, old = layers / "held/v2.diff", layers / "held/v1.diff"
    formfile.write({old: b"one"})
    formfile.write({new: b"two", old: b"changed"})
    formfile.restore({new: None, old: b"one"})
    assert old.read_bytes() == b"one"
    assert not new.exists()
    formfile.restore({new: None, old: None})
    assert not (layers / "held").exists()


def test_an_empty_form_says_that_nothing_is_left_to_do(layers: Path, upstream: Upstream) -> None:
    (layers / "held").mkdir(parents=True)
    (layers / "held/2.0.diff").write_text("")
    upstream.version = "2.0"
    checkout = upstream.checkout(layers)
    tree = apply_series(series.layered("mini"), checkout, target="cpu", variants=[VARIANT])
    assert tree.plan[0].status == "upstream"
    assert "nothing of it is left to do on 2.0" in tree.plan[0].why
