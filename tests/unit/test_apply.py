"""Apply: all or nothing, reproducible, and every failure named at once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspatch.apply import PatchedTree, apply_series
from dspatch.errors import PatchConflictError, TemplateError
from tests.support import PATCH, Upstream, load_series, patch_folders

VARIANT: Any = SimpleNamespace(name="deepseek-v3", families=frozenset({"mla"}))


def applied(root: Path, upstream: Upstream, patches: dict[str, str] | None = None) -> PatchedTree:
    root.mkdir(exist_ok=True)
    series = patch_folders(root, patches)
    return apply_series(series, upstream.checkout(root), target="cpu", variants=[VARIANT])


def test_a_series_becomes_one_commit_a_patch(tmp_path: Path, upstream: Upstream) -> None:
    tree = applied(tmp_path, upstream)
    repo = tree.checkout.repo
    files = repo.entries(tree.commit)
    assert b'return "CPU_MLA"' in repo.blob(files["mini/platform.py"].blob)
    assert b"# deepseek-v3\nREGISTERED = True\n" in repo.blob(files["mini/cpu_mla.py"].blob)
    assert [p.name for p in tree.patches] == ["cpu-mla"]
    assert tree.patches[0].paths == ("mini/cpu_mla.py", "mini/platform.py", "mini/registry.py")
    log = repo.run("log", "--format=%an <%ae> %at %s", f"{tree.checkout.commit}..{tree.commit}")
    assert log == "dspatch <dspatch@localhost> 946684800 Serve MLA on CPU"


def test_the_tree_hash_is_reproducible(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = applied(tmp_path / "a", upstream)
    monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path / "another-cache"))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    second = applied(tmp_path / "b", upstream)
    assert (first.commit, first.tree) == (second.commit, second.tree)


def test_git_am_takes_the_diff(tmp_path: Path, upstream: Upstream) -> None:
    tree = applied(tmp_path, upstream)
    plain = tmp_path / "plain"
    for path, data in upstream.files.items():
        (plain / path).parent.mkdir(parents=True, exist_ok=True)
        (plain / path).write_bytes(data)
    subprocess.run(["git", "init", "-q", plain], check=True)
    subprocess.run(
        ["git", "apply"], cwd=plain, input=tree.diff(tree.patches[0]), text=True, check=True
    )
    assert 'return "CPU_MLA"' in (plain / "mini/platform.py").read_text()


def test_a_patch_that_fails_leaves_nothing_and_all_failures_are_named(
    tmp_path: Path, upstream: Upstream
) -> None:
    broken = PATCH.replace("CpuPlatform.backend", "CpuPlatform.backnd")
    missing = PATCH.replace('file = "mini/registry.py"', 'file = "mini/gone/registry.py"')
    with pytest.raises(PatchConflictError) as error:
        applied(tmp_path, upstream, {"one": broken, "two": missing})
    assert "one, two cannot be applied, so nothing was" in error.value.what
    assert "nearest found: `CpuPlatform.backend`" in error.value.why
    assert "nearest found: mini/registry.py" in error.value.why


def test_a_file_that_upstream_has_is_not_overwritten(tmp_path: Path, upstream: Upstream) -> None:
    upstream.files["mini/cpu_mla.py"] = b"# upstream's own\n"
    with pytest.raises(PatchConflictError, match="cannot be applied"):
        applied(tmp_path, upstream)


@pytest.mark.parametrize(
    ("template", "line", "expected"),
    [
        ("a\n\n${ traits.absent }\n", 3, "has no attribute 'absent'"),
        ("a\n${ version }\n", 2, "'version' is undefined"),
        ("<% for v in variants %>\n", 1, "Unexpected end of template"),
    ],
)
def test_a_malformed_template_is_named_with_its_line(
    template: str, line: int, expected: str, tmp_path: Path, upstream: Upstream
) -> None:
    patch_folders(tmp_path)
    (tmp_path / "templates" / "mini" / "cpu_mla.py.j2").write_text(template)
    with pytest.raises(TemplateError) as error:
        apply_series(
            load_series(tmp_path), upstream.checkout(tmp_path), target="cpu", variants=[VARIANT]
        )
    assert f"cpu_mla.py.j2, line {line}: " in error.value.what
    assert expected in error.value.what
