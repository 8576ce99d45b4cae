"""Which patch wrote a line, and how the patches differ between two revisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.apply import PatchedTree, apply_series
from dspatch.carry import rangediff, why
from dspatch.carry.why import History, Origin
from dspatch.errors import DspatchError
from dspatch.git import init_sharing
from tests.support import PATCH, Upstream, patch_folders
from tests.unit.test_guard import VARIANT
from tests.unit.test_lint_trees import LATER

SHORTER = (
    LATER.replace("find = '''return \"CPU_MLA\"'''", "find = '''name = \"cpu\"'''")
    .replace("text = '''return \"mini.CPU_MLA\"'''", "text = ''")
    .replace('symbol = "CpuPlatform.backend"', 'symbol = "CpuPlatform"')
)


def applied(root: Path, upstream: Upstream, patches: dict[str, str]) -> PatchedTree:
    series = patch_folders(root, patches)
    return apply_series(series, upstream.checkout(root), target="cpu", variants=[VARIANT])


def history(tree: PatchedTree) -> History:
    return History(
        repo=tree.checkout.repo,
        base=tree.checkout.commit,
        head=tree.commit,
        patches={patch.commit: patch.name for patch in tree.patches},
    )


def test_lines_are_told_by_the_patch_that_wrote_them_last(
    tmp_path: Path, upstream: Upstream
) -> None:
    tree = applied(tmp_path, upstream, {"cpu-mla": PATCH, "full-name": LATER})
    assert why.origins(history(tree), "mini/platform.py") == (
        Origin(first=1, last=10, source="upstream"),
        Origin(first=11, last=11, source="patch", patch="full-name"),
        Origin(first=12, last=14, source="upstream"),
    )
    assert {origin.patch for origin in why.origins(history(tree), "mini/cpu_mla.py")} == {"cpu-mla"}


def test_a_patch_that_owns_no_line_of_a_file_is_named(tmp_path: Path, upstream: Upstream) -> None:
    tree = applied(tmp_path, upstream, {"cpu-mla": PATCH, "full-name": LATER, "shorter": SHORTER})
    past = history(tree)
    origins = why.origins(past, "mini/platform.py")
    assert why.took_out(past, "mini/platform.py", origins) == ("cpu-mla", "shorter")
    # The path of a file is no pattern.
    assert why.took_out(past, "mini/plat*.py", origins) == ()


def test_lines_edited_in_the_work_tree_are_nobodys(tmp_path: Path, upstream: Upstream) -> None:
    tree = applied(tmp_path, upstream, {"cpu-mla": PATCH})
    work = init_sharing(tmp_path / "tree", tree.checkout.repo)
    work.run("update-ref", "HEAD", tree.commit)
    work.reset_hard(tree.commit)
    path = tmp_path / "tree/mini/platform.py"
    path.write_text("# mine\n" + path.read_text())
    past = History(repo=work, base=tree.checkout.commit, head=None, patches=history(tree).patches)
    origins = why.origins(past, "mini/platform.py")
    assert origins[0] == Origin(first=1, last=1, source="edited")
    assert Origin(first=12, last=12, source="patch", patch="cpu-mla") in origins


def test_commits_of_the_work_tree_are_their_patchs_or_nobodys(
    tmp_path: Path, upstream: Upstream
) -> None:
    tree = applied(tmp_path, upstream, {"cpu-mla": PATCH})
    work = init_sharing(tmp_path / "tree", tree.checkout.repo)
    work.run("update-ref", "HEAD", tree.commit)
    work.reset_hard(tree.commit)
    path = tmp_path / "tree/mini/platform.py"
    who = ("-c", "user.name=x", "-c", "user.email=x@y")
    path.write_text(path.read_text() + "# amended\n")
    work.run(*who, "commit", "-q", "--amend", "-a", "--no-edit")
    path.write_text(path.read_text() + "# mine\n")
    work.run(*who, "commit", "-q", "-a", "-m", "mine")
    past = History(repo=work, base=tree.checkout.commit, head=None, patches=history(tree).patches)
    origins = why.origins(past, "mini/platform.py")
    assert [(o.source, o.patch) for o in origins[-3:]] == [
        ("upstream", ""),
        ("patch", "cpu-mla"),
        ("edited", ""),
    ]


def test_a_line_that_is_not_there_is_told_with_how_many_there_are(
    tmp_path: Path, upstream: Upstream
) -> None:
    tree = applied(tmp_path, upstream, {"cpu-mla": PATCH})
    origins = why.origins(history(tree), "mini/platform.py")
    assert why.of_line(origins, 11, "mini/platform.py").patch == "cpu-mla"
    with pytest.raises(DspatchError, match="has no line 99") as error:
        why.of_line(origins, 99, "mini/platform.py")
    assert error.value.why == "it has 14 lines"


def test_a_file_that_is_not_there_is_told_with_the_nearest() -> None:
    error = why.no_such_file("platform.py", ["mini/platform.py", "mini/x.py"], "mini 1.0")
    assert "nearest found: mini/platform.py" in error.why
    assert "no file is called so" in why.no_such_file("qqq.rs", ["mini/x.py"], "mini 1.0").why


def test_patches_are_compared_by_name_across_revisions(tmp_path: Path, upstream: Upstream) -> None:
    old = applied(tmp_path, upstream, {"cpu-mla": PATCH, "shorter": SHORTER})
    upstream.version = "2.0"
    text = upstream.files["mini/platform.py"].decode()
    upstream.files["mini/platform.py"] = text.replace(
        "a comment that stays", "other words"
    ).encode()
    new = applied(tmp_path, upstream, {"cpu-mla": PATCH, "shorter": SHORTER})
    pairs = {pair.patch: pair for pair in rangediff.pairs(old, new)}
    assert pairs["cpu-mla"].verdict == "changed"
    assert "# other words" in pairs["cpu-mla"].diff
    assert "# a comment that stays" in pairs["cpu-mla"].diff
    assert pairs["shorter"].verdict == "same"
    assert rangediff.pairs(old, old)[0].verdict == "same"


def test_a_patch_that_one_revision_does_not_need_is_told_with_the_reason(
    tmp_path: Path, upstream: Upstream
) -> None:
    old = applied(tmp_path, upstream, {"cpu-mla": PATCH})
    upstream.version = "2.0"
    upstream.files["mini/platform.py"] = b"class CpuPlatform: ...\n"
    new = applied(tmp_path, upstream, {"cpu-mla": PATCH})
    (there,) = rangediff.pairs(old, new)
    assert (there.verdict, there.why[:10]) == ("only on the first", "not needed")
    (back,) = rangediff.pairs(new, old)
    assert back.verdict == "only on the second"
    assert rangediff.pairs(new, new)[0].verdict == "on neither"
