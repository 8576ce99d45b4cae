"""What somebody made of a job's tree: its commits and edits, sorted by the patch that each belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dspatch import git
from dspatch.carry.exchange.mail import split_message
from dspatch.errors import EditedTreeError, GitError

_FIXUP = re.compile(r"(?:fixup|squash|amend)! ")


@dataclass(frozen=True, kw_only=True)
class Link:
    """One step from tree to tree; `patch` is the name it belongs to, `None` for a patch that is new.

    `first` says that it carries the patch itself, not an addition to it.
    """

    commit: str
    before: str
    after: str
    subject: str
    body: str
    fields: tuple[tuple[str, str], ...]
    patch: str | None
    first: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """All steps of one patch, and the tree that the patch is to give on top of those before it."""

    name: str | None
    links: tuple[Link, ...]
    before: str = ""
    after: str = ""

    @property
    def head(self) -> Link:
        """The step that says what the patch is."""
        return next((link for link in self.links if link.first), self.links[0])


def read(repo: git.Repo, pristine: str, head: str) -> list[Link]:
    """The commits between a pristine commit and a head, first to last.

    Raises `EditedTreeError` for merges, and for a head that does not stem from the pristine commit.
    """
    if pristine == head:
        return []
    try:
        words = repo.run(
            "log", "-z", "--reverse", "--format=%H%x00%P%x00%T%x00%B", f"{pristine}..{head}"
        )
    except GitError:
        raise _not_a_chain(repo, "it does not stem from the pristine tree") from None
    parts = words.split("\0")
    rows = [parts[n : n + 4] for n in range(0, len(parts) - 3, 4)]
    if any(" " in parents for _, parents, _, _ in rows):
        raise _not_a_chain(repo, "it has merges")
    links: list[Link] = []
    parent, tree = pristine, repo.resolve(f"{pristine}^{{tree}}") or ""
    for commit, parents, after, message in rows:
        if parents != parent:
            raise _not_a_chain(repo, "it does not stem from the pristine tree")
        links.append(_link(commit, tree, after, message, links))
        parent, tree = commit, after
    return links


def parts(
    repo: git.Repo, pristine_tree: str, order: Sequence[str], links: Sequence[Link]
) -> list[Part]:
    """The patches that the steps amount to, in the order of the series, those that are new last.

    Steps that stand elsewhere are moved there as `git rebase --autosquash` would. Raises
    `EditedTreeError` when they do not fit there.
    """
    named = {name: [link for link in links if link.patch == name] for name in order}
    fresh = [link for link in links if link.patch not in order]
    groups = [(name, own) for name, own in named.items() if own]
    found: list[Part] = []
    tree = pristine_tree
    for name, own in [*groups, *((group[0].patch, group) for group in _together(fresh))]:
        before = tree
        for link in sorted(own, key=lambda link: not link.first):
            tree = _moved(repo, link, tree)
        found.append(Part(name=name, links=tuple(own), before=before, after=tree))
    return found


def _together(fresh: Sequence[Link]) -> list[list[Link]]:
    """New steps that name the same new patch, as one."""
    groups: dict[str, list[Link]] = {}
    for link in fresh:
        groups.setdefault(link.patch or link.commit, []).append(link)
    return list(groups.values())


def _moved(repo: git.Repo, link: Link, onto: str) -> str:
    """The tree that a step gives when it starts from another tree."""
    if link.before == onto:
        return link.after
    merge = repo.merge(link.before, onto, link.after)
    if not merge.clean:
        raise EditedTreeError(
            f"`{link.subject}` does not fit where its patch stands in the series.",
            why=f"it conflicts in {', '.join(merge.conflicts)} with the patches between",
            next="bring the commits in order with `git rebase -i --autosquash` in the job's tree,"
            " then run it again",
        )
    return merge.tree


def _link(commit: str, before: str, after: str, message: str, earlier: Sequence[Link]) -> Link:
    subject, _, rest = message.rstrip("\n").partition("\n")
    body, fields = split_message(rest)
    name = dict(fields).get("Patch")
    if _FIXUP.match(subject):
        while found := _FIXUP.match(subject):
            subject = subject[found.end() :]
        name = _fixed(subject, earlier)
    first = name is not None and not any(link.patch == name for link in earlier)
    return Link(
        commit=commit, before=before, after=after, subject=subject, body=body, fields=fields,
        patch=name, first=first or name is None,
    )  # fmt: skip


def _fixed(subject: str, earlier: Sequence[Link]) -> str:
    """The patch that a fixup names by subject or commit."""
    for link in earlier:
        if link.subject.startswith(subject) or link.commit.startswith(subject):
            return link.patch or link.commit
    raise EditedTreeError(
        f"no commit of the tree is `{subject}`, which a fixup names.",
        next="reword the fixup, or fold it with `git rebase -i`",
    )


def _not_a_chain(repo: git.Repo, why: str) -> EditedTreeError:
    return EditedTreeError(
        f"the commits in {repo.path} cannot be taken as patches.",
        why=why,
        next="rebase them into a line on top of the pristine commit, or save them and run"
        " `dspatch apply --discard-edits`",
    )


def unfinished(repo: git.Repo) -> str | None:
    """What git is in the middle of in a work tree, `None` when nothing."""
    for name, what in (
        ("rebase-merge", "a rebase"),
        ("rebase-apply", "a rebase or `git am`"),
        ("MERGE_HEAD", "a merge"),
        ("CHERRY_PICK_HEAD", "a cherry-pick"),
        ("REVERT_HEAD", "a revert"),
    ):
        if (repo.path / ".git" / name).exists():
            return what
    states = repo.status().values()
    return "a conflict" if any("U" in s or s in ("AA", "DD") for s in states) else None
