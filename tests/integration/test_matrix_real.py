"""The documents claim what is measured on the published releases, and that costs little."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import (
    apply,
    checkout,
    outputformat,
    paths,
    pins,
    pipconfig,
    series,
    treefiles,
    variants,
)
from dspatch.carry.remote import releases, remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.console import Console
from dspatch.stages import matrix, support
from dspatch.stages.request import served

pytestmark = pytest.mark.e2e

DOCUMENTS = [paths.PACKAGE.parent / name for name in ("README.md", "docs/support.md")]
FILES = ["vllm/platforms/cpu.py", "vllm/model_executor/models/deepseek_v2.py"]


@pytest.mark.parametrize("engine", ["vllm", "lmdeploy"])
def test_documents_hold_on_every_release(engine: str) -> None:
    done = matrix.run(matrix.Wanted(engine=engine), Console())
    assert not [note for note in done.notes if "could not be read" in note]
    assert done.bytes < 100e6
    for document in DOCUMENTS:
        assert support.check(done, document).blocks == 1


def test_a_member_read_by_range_is_the_sources_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pristine = checkout.checkout(pins.load("vllm", "v0.27.1"), source="sdist")
    files = treefiles.of_tree(pristine.repo, pristine.tree)
    monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path))
    release = releases.published("vllm").release("v0.27.1")
    assert release is not None
    assert release.wheel is not None
    traffic = Traffic()
    with pipconfig.client(pipconfig.load()) as client:
        wheel = remote.open_wheel("vllm", release.wheel, client, traffic)
        assert [wheel.read(path) for path in FILES] == [files.read(path) for path in FILES]
    assert traffic.bytes < 2e6


@pytest.mark.parametrize("rev", [pin.rev for pin in pins.pinned("vllm")])
def test_the_matrix_says_what_apply_does(rev: str) -> None:
    done = matrix.run(matrix.Wanted(engine="vllm", rev=rev, native=True), Console())
    pristine = checkout.checkout(pins.load("vllm", rev), source="sdist")
    every = series.layered("vllm").asking(outputformat.NONE, [series.EVERY])
    for target in series.TARGETS:
        tree = apply.apply_series(
            every,
            pristine,
            target=target,
            variants=served(tuple(variants.table())),
        )
        applied = {item.patch.name for item in tree.plan if item.applies}
        not_needed = {item.patch.name for item in tree.plan if item.status == "not needed"}
        cells = [cell for row in done.rows for cell in row.cells.values() if cell.target == target]
        assert {cell.patch for cell in cells if cell.verdict == "semantic"} == applied
        assert {cell.patch for cell in cells if cell.verdict == "not needed"} == not_needed
