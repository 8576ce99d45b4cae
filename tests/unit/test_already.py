"""A patch that upstream has leaves the series and says why; of one that it has in part the rest goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dspatch.apply import PatchedTree, apply_series
from dspatch.errors import PatchConflictError
from tests.support import (
    PATCH,
    PLATFORM,
    REGISTRY,
    Upstream,
    form_patch,
    load_series,
    patch_folders,
)
from tests.unit.test_apply import VARIANT
from tests.unit.test_carry_upstreamed import change

SERVED = PLATFORM.replace(
    'raise NotImplementedError("MLA is not supported on CPU.")', 'return "CPU_MLA"'
)
NAMED = REGISTRY.replace(
    '    CPU_ATTN = "mini.cpu_attn"\n',
    '    CPU_ATTN = "mini.cpu_attn"\n    CPU_MLA = "mini.cpu_mla"\n',
)
EDITS = PATCH.replace('needs = ["refuses_mla"]\n', "").replace(
    PATCH[PATCH.index("[[file]]") : PATCH.index("[[edit]]")], ""
)


def applied(root: Path, upstream: Upstream) -> PatchedTree:
    """The series in `root` on an upstream."""
    checkout = upstream.checkout(root)
    return apply_series(load_series(root), checkout, target="cpu", variants=[VARIANT])


def read(tree: PatchedTree, path: str) -> str:
    repo = tree.checkout.repo
    return repo.blob(repo.entries(tree.commit)[path].blob).decode()


def test_edits_that_upstream_made_are_not_made_again(tmp_path: Path, upstream: Upstream) -> None:
    patch_folders(tmp_path, {"cpu-mla": EDITS})
    upstream.files["mini/platform.py"] = SERVED.encode()
    upstream.files["mini/registry.py"] = NAMED.replace("mini.cpu_mla", "mini.cpu_mla").encode()
    tree = applied(tmp_path, upstream)
    assert tree.commit == tree.checkout.commit
    (planned,) = tree.plan
    assert planned.status == "upstream"
    assert planned.why == (
        "2 of 2 edits upstream: mini/platform.py, line 11; mini/registry.py, line 6"
    )


def test_an_edit_that_upstream_made_leaves_the_others(tmp_path: Path, upstream: Upstream) -> None:
    patch_folders(tmp_path, {"cpu-mla": EDITS})
    upstream.files["mini/registry.py"] = NAMED.encode()
    for tree in (
        applied(tmp_path, upstream),
        applied(tmp_path, upstream),
    ):  # the second is recalled
        assert tree.plan[0].status == "applies"
        assert tree.plan[0].why == "1 of 2 edits upstream: mini/registry.py, line 6"
        assert read(tree, "mini/registry.py") == NAMED
        assert read(tree, "mini/platform.py") == SERVED


def form(root: Path, new: dict[str, str], old: dict[str, str] | None = None) -> None:
    old = {"mini/platform.py": PLATFORM, "mini/registry.py": REGISTRY} if old is None else old
    form_patch(root, "held", {"1.0": change(root / "made", old, {**old, **new}).diff})


def test_a_form_that_is_there_leaves_the_series(tmp_path: Path, upstream: Upstream) -> None:
    form(tmp_path, {"mini/platform.py": SERVED})
    upstream.version = "2.0"
    upstream.files["mini/platform.py"] = b"# upstream's header\n" + SERVED.encode()
    (planned,) = applied(tmp_path, upstream).plan
    assert planned.status == "upstream"
    assert planned.why.startswith("it reverse-applies, 1 of 1 hunks upstream: hunk 1")


def test_the_rest_of_a_form_is_applied_where_it_is_exact(
    tmp_path: Path, upstream: Upstream
) -> None:
    form(tmp_path, {"mini/platform.py": SERVED, "mini/registry.py": NAMED})
    upstream.version = "2.0"
    upstream.files["mini/platform.py"] = b"# upstream's header\n" + SERVED.encode()
    tree = applied(tmp_path, upstream)
    assert tree.plan[0].status == "applies"
    assert tree.plan[0].why.startswith("1 of 2 hunks upstream: hunk 1 of mini/platform.py")
    assert tree.patches[0].how == "strict"
    assert tree.patches[0].paths == ("mini/registry.py",)
    assert read(tree, "mini/registry.py") == NAMED


def test_a_rest_in_conflict_says_so(tmp_path: Path, upstream: Upstream) -> None:
    upstream.checkout(tmp_path)
    form(tmp_path, {"mini/platform.py": SERVED, "mini/registry.py": NAMED})
    upstream.version = "2.0"
    upstream.files["mini/platform.py"] = SERVED.encode()
    upstream.files["mini/registry.py"] = REGISTRY.replace("CPU_ATTN", "CPU_OTHER").encode()
    with pytest.raises(PatchConflictError) as error:
        applied(tmp_path, upstream)
    assert "1 of 2 hunks upstream" in error.value.why
    assert "; the rest: mini/registry.py" in error.value.why


def test_a_form_whose_code_is_there_in_other_words(tmp_path: Path, upstream: Upstream) -> None:
    upstream.checkout(tmp_path)  # the blobs that the form was made on
    form(tmp_path, {"mini/platform.py": SERVED})
    upstream.version = "2.0"
    upstream.files["mini/platform.py"] = (
        SERVED.replace("# a comment that stays", "# rewritten")
        .replace('return "CPU_MLA"', "# ours now\n            return 'CPU_MLA'")
        .replace("if use_mla:", "if (use_mla):")
        .encode()
    )
    (planned,) = applied(tmp_path, upstream).plan
    assert planned.status == "upstream"
    assert planned.why.startswith("equal code, 1 of 1 hunks upstream: hunk 1")
    assert "`CpuPlatform.backend`" in planned.why


def test_lines_that_are_only_taken_away(tmp_path: Path, upstream: Upstream) -> None:
    """They are upstream where their context stands without them, and not where nothing stands."""
    guard = '        if use_sparse:\n            raise NotImplementedError("Sparse is not supported on CPU.")\n'
    form(tmp_path, {"mini/platform.py": PLATFORM.replace(guard, "")})
    upstream.version = "2.0"
    for text, expected in (
        (PLATFORM.replace(guard, ""), "upstream"),
        ("# header\n" + PLATFORM, "applies"),
    ):
        upstream.version += ".1"
        upstream.files["mini/platform.py"] = text.encode()
        assert applied(tmp_path, upstream).plan[0].status == expected
    upstream.version = "3.0"
    upstream.files["mini/platform.py"] = b"class CpuPlatform:\n    pass\n"
    with pytest.raises(PatchConflictError):
        applied(tmp_path, upstream)


def test_an_import_is_not_inserted_twice(tmp_path: Path, upstream: Upstream) -> None:
    old = {"mini/registry.py": REGISTRY}
    upstream.checkout(tmp_path)
    new = REGISTRY.replace("from enum import Enum\n", "from enum import Enum\nimport os\n")
    form(tmp_path, {"mini/registry.py": new}, old)
    upstream.version = "2.0"
    upstream.files["mini/registry.py"] = (REGISTRY + "\n\nimport os\n").encode()
    tree: Any = applied(tmp_path, upstream)
    assert tree.plan[0].status == "upstream"
    assert "`import os`" in tree.plan[0].why


def test_a_part_of_a_series_is_not_taken_for_the_whole(tmp_path: Path, upstream: Upstream) -> None:
    series = patch_folders(tmp_path, {"one": EDITS, "two": PATCH.split("[[edit]]")[0]})
    checkout = upstream.checkout(tmp_path)
    parts = [
        apply_series(replace(series, patches=some), checkout, target="cpu", variants=[VARIANT])
        for some in (series.patches[:1], series.patches)
    ]
    assert [len(tree.patches) for tree in parts] == [1, 2]
