"""A patch that rests on one that the user's own series leaves out says so, and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspatch import leftout, series
from dspatch.apply import apply_series
from dspatch.errors import PatchConflictError
from dspatch.series import Layer, Series
from tests.support import PATCH, Upstream, patch_folders

VARIANT: Any = SimpleNamespace(name="deepseek-v3", families=frozenset({"mla"}))


def without(whole: Series, own: Path, *names: str) -> Series:
    """The series as it is with a layer of the user's own that leaves some patches out."""
    layers = [replace(layer, shipped=True) for layer in whole.layers]
    own.mkdir()
    (own / "series").write_text("".join(f"!{name}\n" for name in names))
    mine = Layer(folder=own, templates=own, shipped=False, names=(), left_out=names)
    return replace(whole, layers=(*layers, mine))


@pytest.mark.parametrize("other", ["cpu-mla", "cpu-mla-head-dims"])
def test_what_the_compiled_decode_rests_on_is_known_by_the_file(tmp_path: Path, other: str) -> None:
    whole = series.layered("vllm")
    compiled = whole.patch("cpu-mla-compiled")
    assert leftout.missed(whole, compiled) == []
    (found,) = leftout.missed(without(whole, tmp_path / "own", other), compiled)
    assert str(found) == (
        f"cpu-mla-compiled rests on {other}, which adds vllm/v1/attention/ops/cpu_mla.py"
        " and is left out"
    )


def test_the_conflict_names_it_and_the_next_step(tmp_path: Path, upstream: Upstream) -> None:
    head = PATCH.partition("[[file]]")[0].partition("[[edit]]")[0]
    edit = '[[edit]]\nfile = "mini/cpu_mla.py"\nverb = "insert-after"\nfind = "REGISTERED = True"\n'
    whole = patch_folders(tmp_path, {"cpu-mla": PATCH, "more": f'{head}{edit}text = "more = 1"\n'})
    how: Any = {"target": "cpu", "variants": [VARIANT]}
    pristine = upstream.checkout(tmp_path)
    assert [each.name for each in apply_series(whole, pristine, **how).patches] == [
        "cpu-mla",
        "more",
    ]
    with pytest.raises(PatchConflictError) as caught:
        apply_series(without(whole, tmp_path / "own", "cpu-mla"), pristine, **how)
    assert "more rests on cpu-mla, which adds mini/cpu_mla.py and is left out" in caught.value.why
    assert caught.value.next == (
        f"leave more out, too, by a line `!more` in {tmp_path}/own/series; or take `!cpu-mla` out of it"
    )
