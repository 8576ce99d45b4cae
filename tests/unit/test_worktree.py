"""Work trees: moved in one recoverable step, never over somebody's edits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dspatch import git, worktree
from dspatch.errors import EditedTreeError


def commit(message: str, files: dict[str, bytes]) -> git.NewCommit:
    changes = tuple(git.Change(path=path, data=data) for path, data in files.items())
    return git.NewCommit(message=message, changes=changes)


@pytest.fixture
def commits(tmp_path: Path) -> tuple[git.Repo, str, str, str]:
    repo = git.init_bare(tmp_path / "cache.git")
    ids = repo.write_commits(
        "refs/heads/x",
        None,
        [
            commit("0", {"a.py": b"0\n", "k.py": b"k\n"}),
            commit("1", {"a.py": b"1\n"}),
            commit("2", {"a.py": b"2\n", "new.py": b"n\n"}),
        ],
    )
    return repo, ids[0], ids[1], ids[2]


def test_a_tree_is_made_moved_and_then_left_alone(
    tmp_path: Path, commits: tuple[git.Repo, str, str, str]
) -> None:
    repo, base, one, two = commits
    tree = tmp_path / "job" / "tree"
    assert worktree.move(tree, repo, pristine=base, commit=one)
    assert (tree / "a.py").read_text() == "1\n"
    assert not worktree.move(tree, repo, pristine=base, commit=one)
    assert worktree.move(tree, repo, pristine=base, commit=two)
    assert (tree / "new.py").read_text() == "n\n"
    assert worktree.edits(tree) == []
    assert worktree.head(tree) == two


@pytest.mark.parametrize("how", ["edit", "untracked", "delete", "commit"])
def test_edits_are_never_overwritten(
    how: str, tmp_path: Path, commits: tuple[git.Repo, str, str, str]
) -> None:
    repo, base, one, two = commits
    tree = tmp_path / "tree"
    worktree.move(tree, repo, pristine=base, commit=one)
    if how == "untracked":
        (tree / "mine.py").write_text("mine\n")
    elif how == "delete":
        (tree / "k.py").unlink()
    else:
        (tree / "a.py").write_text("mine\n")
    if how == "commit":
        author = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
        subprocess.run(["git", "-C", tree, *author, "commit", "-qam", "mine"], check=True)
    before = {p.name: p.read_bytes() for p in tree.glob("*.py")}
    with pytest.raises(EditedTreeError, match="was edited"):
        worktree.move(tree, repo, pristine=base, commit=two)
    assert {p.name: p.read_bytes() for p in tree.glob("*.py")} == before
    assert worktree.move(tree, repo, pristine=base, commit=two, discard=True)
    assert (tree / "a.py").read_text() == "2\n"
    assert not (tree / "mine.py").exists()


def test_a_killed_move_is_finished(tmp_path: Path, commits: tuple[git.Repo, str, str, str]) -> None:
    repo, base, one, two = commits
    tree = tmp_path / "tree"
    worktree.move(tree, repo, pristine=base, commit=one)
    job = git.Repo(tree)
    job.set_ref(worktree.MOVING, two)
    (tree / "a.py").write_text("half wri")
    (tree / ".git" / "index.lock").write_text("")
    assert not worktree.move(tree, repo, pristine=base, commit=two)
    assert (tree / "a.py").read_text() == "2\n"
    assert worktree.edits(tree) == []


def test_an_interrupted_move_does_not_excuse_other_edits(
    tmp_path: Path, commits: tuple[git.Repo, str, str, str]
) -> None:
    repo, base, one, two = commits
    tree = tmp_path / "tree"
    worktree.move(tree, repo, pristine=base, commit=one)
    git.Repo(tree).set_ref(worktree.MOVING, two)
    (tree / "k.py").write_text("mine\n")
    with pytest.raises(EditedTreeError):
        worktree.move(tree, repo, pristine=base, commit=two)
    assert (tree / "k.py").read_text() == "mine\n"


def test_a_folder_that_is_not_ours_is_left_alone(
    tmp_path: Path, commits: tuple[git.Repo, str, str, str]
) -> None:
    repo, base, one, _ = commits
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "thesis.txt").write_text("x")
    with pytest.raises(EditedTreeError, match="did not put there"):
        worktree.move(tree, repo, pristine=base, commit=one)


def test_a_tree_in_the_ignored_folder_of_another_repository_is_patched(
    tmp_path: Path, commits: tuple[git.Repo, str, str, str]
) -> None:
    repo, base, one, two = commits
    outer = tmp_path / "outer"
    subprocess.run(["git", "init", "-q", outer], check=True)
    (outer / ".gitignore").write_text("work/\n")
    tree = outer / "work" / "tree"
    worktree.move(tree, repo, pristine=base, commit=one)
    worktree.move(tree, repo, pristine=base, commit=two)
    assert (tree / "a.py").read_text() == "2\n"
    assert git.Repo(tree).resolve("HEAD") == two
