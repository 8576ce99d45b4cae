"""A job's tree at a conflict: the good patches as commits, markers in the files, git's index as after a merge."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspatch import git, worktree
from dspatch.errors import EditedTreeError, RebaseStoppedError
from dspatch.git import Change, Entry, Repo

NOTHING = "0" * 40
_UNMERGED = frozenset({"DD", "AU", "UD", "UA", "DU", "AA", "UU"})


@dataclass(frozen=True, kw_only=True)
class Sides:
    """A file in conflict: its entry before the patch, in the new tree, and as the patch leaves it."""

    path: str
    base: Entry | None
    ours: Entry | None
    theirs: Entry | None


def lay(tree: Path, marked: Mapping[str, Change], conflicts: Sequence[Sides]) -> None:
    """Put a merge that stopped into a clean tree: merged files staged, those in conflict with markers."""
    repo = Repo(tree)
    unresolved = {sides.path for sides in conflicts}
    for path, change in marked.items():
        _write(tree / path, change)
    clean = sorted(set(marked) - unresolved)
    if clean:
        repo.run("add", "-A", "-f", "--", *(f":(literal){path}" for path in clean))
    lines = "".join(line for sides in conflicts for line in _index_lines(sides))
    repo.run("update-index", "-z", "--index-info", stdin=lines)


def resolution(tree: Path, base: str, labels: Collection[str]) -> str:
    """What was staged in a tree since `base`, as a diff; commits on top of it count, too.

    Raises `RebaseStoppedError` while something is unmerged, unstaged or still holds markers, and
    `EditedTreeError` when the tree no longer stands on `base`.
    """
    repo = Repo(tree)
    if repo.resolve(base) is None or repo.run("merge-base", base, "HEAD") != base:
        raise EditedTreeError(
            f"{tree} no longer stands where the rebase left it.",
            why=f"HEAD does not come after {base[:12]}, the last good patch",
            next="dspatch patch rebase --abort",
        )
    _refuse_unfinished(tree, repo)
    staged = repo.run("write-tree")
    changed = repo.changed_paths(base, staged)
    left = [path for path in changed if _has_markers(tree / path, labels)]
    if left:
        raise _not_yet(tree, [f"{path} still holds conflict markers" for path in left])
    return repo.diff(base, staged)


def own_paths_only(tree: Path, touched: Collection[str]) -> None:
    """Raise `EditedTreeError` when a tree holds changes that dspatch did not make itself."""
    if not (tree / ".git" / "HEAD").exists():
        return
    foreign = sorted(set(Repo(tree).status()) - set(touched))
    if foreign:
        raise EditedTreeError(
            f"{tree} was edited while a rebase was cut off; it is left as it is.",
            why="\n        ".join(foreign[:8]),
            next="save the edits elsewhere and restore these files, then run the command again",
        )


def stand(tree: Path) -> tuple[str, str] | None:
    """The pristine and the patched commit of a tree, `None` without one."""
    if not (tree / ".git" / "HEAD").exists():
        return None
    pristine, patched = git.Repo(tree).resolve_all(worktree.PRISTINE, worktree.PATCHED)
    return (pristine, patched) if pristine and patched else None


def _refuse_unfinished(tree: Path, repo: Repo) -> None:
    states = repo.status()
    found = [f"{path} is not resolved" for path, state in states.items() if state in _UNMERGED]
    found += [
        f"{path} has changes that are not staged"
        for path, state in states.items()
        if state not in _UNMERGED and state[1] != " "
    ]
    if found:
        raise _not_yet(tree, found)


def _not_yet(tree: Path, found: Sequence[str]) -> RebaseStoppedError:
    return RebaseStoppedError(
        f"the conflict in {tree} is not resolved yet.",
        why="\n        ".join(sorted(found)[:8]),
        next="edit the files, `git add` them (or `git rm`), then dspatch patch rebase --continue",
    )


def _has_markers(path: Path, labels: Collection[str]) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    names = b"|".join(re.escape(label.encode()) for label in labels)
    return re.search(rb"^(<{7}|\|{7}|>{7}) (%s)" % names, path.read_bytes(), re.M) is not None


def _write(path: Path, change: Change) -> None:
    if path.is_symlink() or path.exists():
        path.unlink()
    if change.data is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.mode == "120000":
        path.symlink_to(change.data.decode("utf-8", "surrogateescape"))
        return
    path.write_bytes(change.data)
    path.chmod(0o755 if change.mode == "100755" else 0o644)


def _index_lines(sides: Sides) -> list[str]:
    stages = enumerate((sides.base, sides.ours, sides.theirs), 1)
    return [
        f"0 {NOTHING}\t{sides.path}\0",
        *(f"{entry.mode} {entry.blob} {n}\t{sides.path}\0" for n, entry in stages if entry),
    ]
