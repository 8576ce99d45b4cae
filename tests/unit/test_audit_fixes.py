"""The patch of a finding is tried on the source before its command is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import pins
from dspatch.audit import source
from dspatch.audit.fixes import Fix, Fixes
from dspatch.audit.source import Source
from dspatch.series import Series
from dspatch.variants import variant
from tests import support

V3 = variant("deepseek-v3")


@pytest.fixture
def series(tmp_path: Path) -> Series:
    return support.patch_folders(tmp_path)


@pytest.fixture
def tree(tmp_path: Path, upstream: support.Upstream) -> Path:
    folder = tmp_path / "tree"
    for path, data in upstream.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def opened(tree: Path, version: str | None = "0.27.1") -> Source:
    return source.of_folder(
        "vllm", tree, version=version, kind="folder", origin="x", package="mini"
    )


def fix(
    series: Series, found: Source, *rev: str, name: str = "cpu-mla", target: str | None = None
) -> Fix:
    return Fixes(series, found, [V3], rev, [name]).fix(name, target, ("deepseek-v3",))


def test_the_command_of_a_pin(series: Series, tree: Path) -> None:
    assert any(pin.rev == "v0.27.1" for pin in pins.pinned("vllm"))
    assert fix(series, opened(tree), "--rev", "v0.27.1") == Fix(
        command="dspatch run --engine vllm --rev v0.27.1 --target cpu --variant deepseek-v3"
    )


def test_a_release_without_a_pin_gets_one_first(series: Series, tree: Path) -> None:
    command = fix(series, opened(tree), "--rev", "v0.27.0").command
    assert command.startswith("dspatch pin add --engine vllm --rev v0.27.0 && dspatch run --engine")


def test_a_fork_is_named_by_its_repository(series: Series, tree: Path) -> None:
    words = ("--rev", "ours", "--repo", "~/my vllm", "--base", "v0.27.1")
    command = fix(series, opened(tree, None), *words).command
    assert "--rev ours --repo '~/my vllm' --base v0.27.1 --target cpu" in command
    assert "pin add" not in command


def test_a_work_tree_has_no_revision_to_patch(series: Series, tree: Path) -> None:
    assert "commit this work tree" in fix(series, opened(tree, None)).unfit


def test_a_patch_for_another_target(series: Series, tree: Path) -> None:
    assert fix(series, opened(tree), "--rev", "v1", target="cuda") == Fix(unfit="it is for cpu")


def test_a_patch_that_is_not_there(series: Series, tree: Path) -> None:
    assert "no patch `gone`" in fix(series, opened(tree), "--rev", "v1", name="gone").unfit


def test_a_patch_that_the_source_does_not_need(series: Series, tree: Path) -> None:
    (tree / "mini" / "platform.py").write_text("class CpuPlatform: ...\n")
    unfit = fix(series, opened(tree), "--rev", "v1").unfit
    assert unfit.startswith("it is not for this source (not in this checkout: ")


def test_a_patch_that_does_not_apply(series: Series, tree: Path) -> None:
    registry = tree / "mini" / "registry.py"
    registry.write_text(registry.read_text().replace("CPU_ATTN =", "CPU_SDPA ="))
    unfit = fix(series, opened(tree), "--rev", "v1").unfit
    assert unfit.startswith("it does not apply: conflict (")
