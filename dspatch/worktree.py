"""A job's work tree: moved to the patched commit in one recoverable step, never over somebody's edits."""

from __future__ import annotations

from pathlib import Path

from dspatch import git
from dspatch.errors import EditedTreeError
from dspatch.files import disk_full_explained, folder_in_one_step

PATCHED = "refs/dspatch/patched"
PRISTINE = "refs/dspatch/pristine"
# Set while the tree moves: a process killed in between leaves it, and the next one finishes the move.
MOVING = "refs/dspatch/moving"
# The commit of the one patch that the tree stands at, to be edited there.
EDITING = "refs/dspatch/editing"


def move(
    tree: Path, objects: git.Repo, *, pristine: str, commit: str, discard: bool = False
) -> bool:
    """Put the work tree at a commit; returns whether anything had to change.

    Raises `EditedTreeError` when the tree holds edits or commits that are not dspatch's, unless
    `discard`.
    """
    with disk_full_explained(tree.parent):
        if not (tree / ".git" / "HEAD").exists():
            _refuse_foreign(tree)
            _create(tree, objects, pristine, commit)
            return True
        repo = git.Repo(tree)
        _finish_interrupted_move(repo)
        edited = edits(tree)
        if edited and not discard:
            raise _edited_error(tree, edited)
        if not edited and repo.resolve(PATCHED) == commit:
            return False
        _advance(repo, pristine, commit, clean=bool(edited))
        return True


def stand_at(tree: Path, commit: str) -> None:
    """Put an unedited tree at the commit of one of its patches, to be edited there.

    Raises `EditedTreeError`.
    """
    repo = git.Repo(tree)
    _finish_interrupted_move(repo)
    edited = edits(tree)
    if edited:
        raise _edited_error(tree, edited)
    with disk_full_explained(tree.parent):
        repo.set_refs({MOVING: commit, EDITING: commit})
        repo.reset_hard(commit)
        repo.set_refs({MOVING: None})


def edits(tree: Path) -> list[str]:
    """What somebody changed in the tree since dspatch wrote it: paths, and commits on top."""
    repo = git.Repo(tree)
    head, patched = repo.resolve_all("HEAD", PATCHED)
    if head is None:
        return ["the cache no longer holds what dspatch wrote, so that edits cannot be told"]
    found = [f"{state.strip()} {path}" for path, state in sorted(repo.status().items())]
    if head != patched:
        found.insert(0, f"HEAD is {head}, dspatch left {patched}")
    return found


def head(tree: Path) -> str | None:
    """The commit that a job's tree stands at, `None` without a tree."""
    return git.Repo(tree).resolve("HEAD") if (tree / ".git" / "HEAD").exists() else None


def _refuse_foreign(tree: Path) -> None:
    if tree.exists() and any(tree.iterdir()):
        raise EditedTreeError(
            f"{tree} holds files that dspatch did not put there.",
            why="it has no git directory of its own, so their history cannot be told",
            next="move the folder away and run the command again",
        )
    if tree.exists():
        tree.rmdir()


def _create(tree: Path, objects: git.Repo, pristine: str, commit: str) -> None:
    with folder_in_one_step(tree) as building:
        building.rmdir()
        repo = git.init_sharing(building, objects)
        repo.set_refs({"refs/heads/dspatch": commit, PRISTINE: pristine, PATCHED: commit})
        repo.reset_hard(commit)


def _advance(repo: git.Repo, pristine: str, commit: str, *, clean: bool) -> None:
    repo.set_ref(MOVING, commit)
    repo.reset_hard(commit)
    if clean:
        repo.run("clean", "--quiet", "-fd")
    repo.set_refs({PRISTINE: pristine, PATCHED: commit, MOVING: None})


def _finish_interrupted_move(repo: git.Repo) -> None:
    """Finish a move that was killed, provided that only files of that move are in between."""
    target, patched = repo.resolve_all(MOVING, PATCHED)
    if target is None or patched is None:
        return
    own = set(repo.changed_paths(patched, target))
    if set(repo.status()) <= own:
        repo.reset_hard(target)
        repo.set_refs({PATCHED: target, MOVING: None})
    else:
        repo.set_refs({MOVING: None})


def _edited_error(tree: Path, edited: list[str]) -> EditedTreeError:
    shown = edited[:8] + ([f"and {len(edited) - 8} more"] if len(edited) > 8 else [])
    return EditedTreeError(
        f"{tree} was edited since dspatch wrote it; it is left as it is.",
        why="\n        ".join(shown),
        next="take the edits into the patches with `dspatch patch refresh`, save them (`git -C TREE"
        " diff > my.diff`), or drop them with --discard-edits",
    )
