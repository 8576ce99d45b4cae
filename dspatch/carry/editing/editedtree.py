"""A job's tree as somebody left it, beside the series that it was made from: what is whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspatch import git, worktree
from dspatch.apply import PatchedTree
from dspatch.carry.editing import chain, loose
from dspatch.carry.editing.chain import Link, Part
from dspatch.errors import EditedTreeError
from dspatch.series import Series

# What somebody made is kept under this, whatever becomes of it.
SAVED = "refs/dspatch/edited"


@dataclass(frozen=True, kw_only=True)
class EditedTree:
    """The head and the files of a job's tree, its series applied anew, and the patch it stands at.

    `made_on` is the name of a form made here.
    """

    repo: git.Repo
    head: str
    work: str
    series: Series
    patched: PatchedTree
    made_on: str
    at: str | None

    @property
    def pristine(self) -> str:
        """The commit below all patches."""
        return self.patched.checkout.commit

    @property
    def order(self) -> list[str]:
        """The patches that must have a commit: all, or those up to the one being edited."""
        names = [patch.name for patch in self.patched.patches]
        return names[: names.index(self.at) + 1] if self.at else names


def read(path: Path, series: Series, patched: PatchedTree, made_on: str) -> EditedTree:
    """Look at a job's tree. Raises `EditedTreeError` where git is busy, or the patches moved on."""
    repo = git.Repo(path)
    busy = chain.unfinished(repo)
    if busy:
        raise EditedTreeError(
            f"git is in the middle of {busy} in {path}.",
            next="finish it or abort it there, then run it again",
        )
    head = repo.resolve("HEAD") or ""
    tree = EditedTree(
        repo=repo,
        head=head,
        work=repo.work_tree(),
        series=series,
        patched=patched,
        made_on=made_on,
        at=_edited_patch(repo, patched, head),
    )
    _check_current(tree)
    return tree


def _edited_patch(repo: git.Repo, patched: PatchedTree, head: str) -> str | None:
    """The patch that the tree stands at, `None` when it has the whole series."""
    commit = repo.resolve(worktree.EDITING)
    name = next((patch.name for patch in patched.patches if patch.commit == commit), None)
    if name is None or patched.commit == commit:
        return None
    last = patched.patches[-1].name
    links = chain.read(repo, patched.checkout.commit, head)
    return None if any(link.patch == last for link in links) else name


def _check_current(tree: EditedTree) -> None:
    """Raise when the patches changed behind the tree's back; a refresh that was cut off did not."""
    known = tree.repo.resolve(worktree.PATCHED)
    commits = {tree.pristine, *(patch.commit for patch in tree.patched.patches)}
    if known in commits or tree.work in trees_of(tree.patched).values():
        return
    raise EditedTreeError(
        f"the patches have changed since {tree.repo.path} was made from them.",
        why="taking the tree's edits in would undo that change",
        next=f"save the edits (`git -C {tree.repo.path} diff {worktree.PATCHED} > my.diff`), run"
        " `dspatch apply` with --discard-edits, then apply them to the new tree",
    )


def trees_of(patched: PatchedTree) -> dict[str, str]:
    """The tree after each patch, by the patch's name."""
    names = [patch.name for patch in patched.patches]
    wanted = [f"{patch.commit}^{{tree}}" for patch in patched.patches]
    found = patched.checkout.repo.resolve_all(*wanted) if wanted else []
    return {name: tree for name, tree in zip(names, found, strict=True) if tree}


def save(tree: EditedTree) -> str:
    """Keep what somebody made as a commit under a ref of its own; returns it."""
    commit = tree.head
    if tree.repo.resolve(f"{tree.head}^{{tree}}") != tree.work:
        commit = tree.repo.commit_tree(tree.work, tree.head)
    if commit != tree.patched.commit:
        tree.repo.set_ref(f"{SAVED}/{commit[:12]}", commit)
    return commit


def parts(tree: EditedTree, into: str | None) -> list[Part]:
    """What each patch is to be, from the commits and edits of the tree; edits go `into` a named one.

    Raises `EditedTreeError` for what cannot be told, or does not fit the order of the series.
    """
    links = chain.read(tree.repo, tree.pristine, tree.head)
    gone = [name for name in tree.order if name not in {link.patch for link in links}]
    if gone and _was_cut_off(tree):
        return []
    _check_complete(tree, gone)
    _check_target(tree, links, into)
    edits = loose.links_of(
        tree.repo,
        (tree.pristine, tree.head),
        tree.work,
        into=into or tree.at or _new_on_top(tree, links),
        links=links,
    )
    _check_none_new(tree, links)
    found = chain.parts(tree.repo, tree.patched.checkout.tree, tree.order, [*links, *edits])
    if found and found[-1].after != tree.work:
        raise EditedTreeError(
            "the patches in the order of the series do not give the tree that stands there.",
            next="bring the commits in that order with `git rebase -i`, then run it again",
        )
    return found


def _was_cut_off(tree: EditedTree) -> bool:
    """Whether the patches already give this tree: a refresh of the one edited ended before its last step."""
    editing = tree.repo.resolve(worktree.EDITING) is not None
    return editing and not tree.at and tree.work in trees_of(tree.patched).values()


def _check_complete(tree: EditedTree, gone: Sequence[str]) -> None:
    if gone:
        raise EditedTreeError(
            f"the tree has no commit of {', '.join(gone)}.",
            why="a refresh drops no patch",
            next=f"dspatch patch drop {gone[0]}; or bring its commit back: git -C {tree.repo.path}"
            f" reset --hard {worktree.PATCHED}",
        )


def _check_target(tree: EditedTree, links: Sequence[Link], into: str | None) -> None:
    if into is not None and into not in {*tree.order, *(link.patch for link in links)}:
        tree.series.patch(into)
        raise EditedTreeError(
            f"{into} is not in the tree, so nothing can go into it.",
            next="dspatch patch list shows which patches this job has",
        )


def _check_none_new(tree: EditedTree, links: Sequence[Link]) -> None:
    new = [link for link in links if link.patch not in tree.order]
    if tree.at and new:
        raise EditedTreeError(
            f"`{new[0].subject}` is a new patch, but the tree stands at {tree.at}.",
            next="fold it into that patch (`git commit --amend`), refresh, and make the new one after",
        )


def _new_on_top(tree: EditedTree, links: Sequence[Link]) -> str | None:
    """A patch that was begun with `patch new` takes the edits made since."""
    last = links[-1] if links else None
    return last.patch or last.commit if last and last.patch not in tree.order else None
