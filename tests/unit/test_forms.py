"""Patches held as diffs: strict, merged, recorded for a revision, upstream already, and fast in batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import batch, git, series, treefiles
from dspatch.apply import PatchedTree, apply_series, place_of
from dspatch.errors import PatchConflictError, PatchFormatError
from dspatch.git import Change
from dspatch.traits import Traits
from tests.support import PATCH, Upstream, form_patch, load_series, numbered, patch_folders
from tests.unit.test_apply import VARIANT


def upstream(version: str, **files: bytes) -> Upstream:
    return Upstream(
        version=version,
        files={name.replace("_", "/") + ".py": data for name, data in files.items()},
    )


def diff_of(folder: Path, old: Upstream, new: Upstream) -> str:
    folder.mkdir(exist_ok=True)
    a, b = old.checkout(folder), new.checkout(folder)
    return a.repo.diff(a.tree, b.tree)


def applied(root: Path, release: Upstream) -> PatchedTree:
    return apply_series(load_series(root), release.checkout(root), target="cpu", variants=[VARIANT])


def content(tree: PatchedTree, path: str) -> bytes:
    repo = tree.checkout.repo
    return repo.blob(repo.entries(tree.commit)[path].blob)


def test_a_form_applies_to_its_own_revision_and_merges_onto_another(tmp_path: Path) -> None:
    old = upstream("1.0", mini_a=numbered())
    diff = diff_of(tmp_path, old, upstream("1.0.1", mini_a=numbered((20, "new\n"))))
    form_patch(tmp_path, "fix", {"v1.0": diff})
    on_old = applied(tmp_path, old)
    assert [patch.how for patch in on_old.patches] == ["strict"]
    on_new = applied(tmp_path, upstream("2.0", mini_a=b"top\n" + numbered((18, "theirs\n"))))
    assert [patch.how for patch in on_new.patches] == ["merged"]
    assert content(on_new, "mini/a.py") == b"top\n" + numbered((18, "theirs\n"), (20, "new\n"))


def test_a_recorded_resolution_wins_on_its_revision(tmp_path: Path) -> None:
    old, new = (
        upstream("1.0", mini_a=numbered()),
        upstream("2.0", mini_a=numbered((20, "theirs\n"))),
    )
    first = diff_of(tmp_path, old, upstream("1.0.1", mini_a=numbered((20, "mine\n"))))
    form_patch(tmp_path, "fix", {"v1.0": first})
    with pytest.raises(PatchConflictError, match="fix cannot be applied"):
        applied(tmp_path, new)
    resolved = diff_of(tmp_path, new, upstream("2.0.1", mini_a=numbered((20, "both\n"))))
    (tmp_path / "patches/mini/fix/v2.0.diff").write_text(resolved)
    assert content(applied(tmp_path, new), "mini/a.py") == numbered((20, "both\n"))
    # It serves the releases after it too.
    later = applied(tmp_path, upstream("2.1", mini_a=numbered((20, "theirs\n"), (1, "x\n"))))
    assert content(later, "mini/a.py") == numbered((20, "both\n"), (1, "x\n"))
    assert content(applied(tmp_path, old), "mini/a.py") == numbered((20, "mine\n"))


def test_what_upstream_has_leaves_the_series(tmp_path: Path) -> None:
    old = upstream("1.0", mini_a=numbered())
    diff = diff_of(tmp_path, old, upstream("1.0.1", mini_a=numbered((20, "new\n"))))
    form_patch(tmp_path, "fix", {"v1.0": diff})
    tree = applied(tmp_path, upstream("2.0", mini_a=numbered((20, "new\n"), (3, "x\n"))))
    assert [(item.patch.name, item.status) for item in tree.plan] == [("fix", "upstream")]
    assert tree.patches == ()
    assert tree.commit == tree.checkout.commit
    again = applied(tmp_path, upstream("2.0", mini_a=numbered((20, "new\n"), (3, "x\n"))))
    assert again.plan[0].status == "upstream"


def test_a_rendered_patch_that_fails_falls_back_on_its_forms(tmp_path: Path) -> None:
    release = Upstream()
    patch_folders(
        tmp_path,
        {
            "cpu-mla": PATCH.split("[[file]]")[0]
            + '[[edit]]\nfile = "run.sh"\nverb = "insert-after"\nfind = "gone"\ntext = "x"\n'
        },
    )
    changed = Upstream(version="1.0.1", files={**release.files, "run.sh": b"#!/bin/sh\necho\n"})
    with pytest.raises(PatchConflictError):
        applied(tmp_path, release)
    (tmp_path / "patches/mini/cpu-mla/v0.9.diff").write_text(diff_of(tmp_path, release, changed))
    tree = applied(tmp_path, release)
    assert tree.patches[0].how == "strict"
    assert content(tree, "run.sh") == b"#!/bin/sh\necho\n"


def test_fuzz_needs_a_reason(tmp_path: Path) -> None:
    old = upstream("1.0", mini_a=numbered())
    diff = diff_of(tmp_path, old, upstream("1.0.1", mini_a=numbered((20, "new\n"))))
    lost = diff.replace(old_blob(diff), "0" * 39 + "1")  # nobody has that file
    moved = upstream("2.0", mini_a=numbered((18, "theirs\n")))
    form_patch(tmp_path, "fix", {"0" * 40: lost})
    with pytest.raises(PatchConflictError, match="fix cannot be applied"):
        applied(tmp_path, moved)
    toml = tmp_path / "patches/mini/fix/patch.toml"
    toml.write_text(toml.read_text() + "[fuzz]\ncontext = 1\n")
    with pytest.raises(PatchFormatError, match="`reason`"):
        applied(tmp_path, moved)
    toml.write_text(toml.read_text() + 'reason = "one line around it is unique"\n')
    assert applied(tmp_path, moved).patches[0].how == "fuzzy"


def old_blob(diff: str) -> str:
    return diff.split("index ")[1][:40]


def test_a_batch_gives_what_one_by_one_gives(tmp_path: Path) -> None:
    files = {f"mini_f{n}": numbered() for n in range(5)}
    state = upstream("1.0", **files)
    for number in range(20):
        path = f"mini_f{number * 7 % 5}"
        lines = files[path].decode().splitlines(keepends=True)
        lines[number * 2 + 3] = f"patch {number}\n"
        files[path] = "".join(lines).encode()
        after = upstream(f"1.0.{number + 1}", **files)
        form_patch(tmp_path, f"p{number:02}", {"v0.9": diff_of(tmp_path, state, after)})
        state = after
    release = upstream("1.0", **{f"mini_f{n}": numbered((58, "later\n")) for n in range(5)})
    tree = applied(tmp_path, release)
    assert len(tree.patches) == 20
    assert {patch.how for patch in tree.patches} == {"strict"}
    loaded, checkout = load_series(tmp_path), release.checkout(tmp_path)
    pristine = treefiles.of_tree(checkout.repo, checkout.tree)
    place = place_of(loaded, checkout, Traits({}, pristine.read), target="cpu", variants=[VARIANT])
    for number, patch in enumerate(loaded.patches):
        alone = batch._alone(patch, pristine, place)
        assert alone.outcome is not None
        assert tuple(sorted(alone.outcome.changes)) == tree.patches[number].paths
        pristine = pristine.with_changes(alone.outcome.changes)
    for n in range(5):
        assert content(tree, f"mini/f{n}.py") == pristine.read(f"mini/f{n}.py")


def test_the_other_patches_of_a_failing_one_are_told(tmp_path: Path) -> None:
    old = upstream("1.0", mini_a=numbered(), mini_b=numbered())
    a = diff_of(tmp_path, old, upstream("1.0.1", mini_a=numbered((20, "new\n")), mini_b=numbered()))
    b = diff_of(tmp_path, old, upstream("1.0.2", mini_a=numbered(), mini_b=numbered((20, "new\n"))))
    form_patch(tmp_path, "first", {"v1.0": a})
    form_patch(tmp_path, "second", {"v1.0": b})
    with pytest.raises(PatchConflictError) as error:
        applied(tmp_path, upstream("2.0", mini_a=numbered((20, "theirs\n")), mini_b=numbered()))
    assert "first cannot be applied" in error.value.what
    assert "the other 1 would apply" in error.value.why
    assert "Merge conflict in mini/a.py" in error.value.why


def test_the_layers_of_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    patch_folders(shipped)
    old = upstream("1.0", mini_a=numbered())
    diff = diff_of(tmp_path, old, upstream("1.0.1", mini_a=numbered((20, "new\n"))))
    form_patch(own, "mine", {"v1.0": diff})
    monkeypatch.setenv("DSPATCH_DATA", str(shipped))
    monkeypatch.setenv("DSPATCH_PATCHES", str(own / "patches"))
    both = series.layered("mini")
    assert [(patch.name, patch.shipped) for patch in both.patches] == [
        ("cpu-mla", True),
        ("mine", False),
    ]
    lines = own / "patches/mini/series"
    lines.write_text("!cpu-mla  # we have no CPU\nmine\n")
    facts = Traits(both.traits, Upstream().files.get)
    plan = series.layered("mini").plan(facts, "cpu", [frozenset({"mla"})])
    assert [item.status for item in plan] == ["left out", "applies"]
    lines.write_text("!*\nmine\n")
    plan = series.layered("mini").plan(facts, "cpu", [frozenset({"mla"})])
    assert [item.status for item in plan] == ["left out", "applies"]
    lines.write_text("!gone\nmine\n")
    with pytest.raises(PatchFormatError, match="`!gone` leaves out a patch that does not ship"):
        series.layered("mini")
    monkeypatch.setenv("DSPATCH_PATCHES", str(shipped / "patches"))
    assert len(series.layered("mini").layers) == 1


def test_objects_are_written_once_for_many_blobs(tmp_path: Path) -> None:
    repo = git.init_bare(tmp_path / "bare")
    ids = repo.write_blobs([b"a", b"", b"\n", b"a"])
    assert [repo.blob(oid) for oid in ids] == [b"a", b"", b"\n", b"a"]
    assert ids[0] == ids[3]
    commits = repo.write_commits(
        "refs/t", None,
        [git.NewCommit(message=str(n), changes=[Change(path="f", data=b"%d\n" % n)]) for n in range(3)],
    )  # fmt: skip
    assert repo.diffs(commits[1:]) == [repo.diff(f"{c}^", c) for c in commits[1:]]
