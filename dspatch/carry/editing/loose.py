"""Edits of a job's tree that are not committed, each given to the patch whose code it changes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from dspatch import git
from dspatch.carry.editing.chain import Link
from dspatch.errors import EditedTreeError


def links_of(
    repo: git.Repo,
    span: tuple[str, str],
    tree: str,
    *,
    into: str | None,
    links: Sequence[Link],
) -> list[Link]:
    """The edits that are not committed, as steps: into the named patch, or each file's only owner.

    `span` are the pristine commit and the head. Raises `EditedTreeError` that names the files whose
    patch cannot be told.
    """
    before = repo.resolve(f"{span[1]}^{{tree}}") or ""
    if before == tree:
        return []
    if into is not None:
        return [_loose(before, tree, into)]
    changed = repo.changed_paths(before, tree)
    owners = _owners(repo, links)
    commits = {link.commit: link.patch or link.commit for link in links}
    owner = {
        path: owners[path][0]
        if len(owners.get(path, ())) == 1
        else _only_owner(repo, span, tree, path, commits)
        for path in changed
    }
    unknown = [path for path, name in owner.items() if name is None]
    if unknown:
        raise _ambiguous(unknown, owners)
    steps, at = [], before
    for name in dict.fromkeys(owner.values()):
        mine = [path for path in changed if owner[path] == name]
        after = _with(repo, at, tree, mine)
        steps.append(_loose(at, after, name or ""))
        at = after
    return steps


def _owners(repo: git.Repo, links: Sequence[Link]) -> dict[str, list[str]]:
    """The patches that change each path."""
    found: dict[str, list[str]] = {}
    for link in links:
        for path in repo.changed_paths(link.before, link.after):
            name = link.patch or link.commit
            if name not in found.setdefault(path, []):
                found[path].append(name)
    return found


def _loose(before: str, after: str, name: str) -> Link:
    return Link(
        commit="", before=before, after=after, subject="edits", body="", fields=(), patch=name
    )


def _only_owner(
    repo: git.Repo, span: tuple[str, str], tree: str, path: str, commits: Mapping[str, str]
) -> str | None:
    """The one patch whose lines an edit of a file touches or adjoins; several edits must agree."""
    pristine, head = span
    old, new = (repo.entries(one, [path]).get(path) for one in (head, tree))
    if old is None or new is None:
        return None
    names = [commits.get(commit) for commit in repo.blame([f"^{pristine}", head], path)]
    lines = [repo.blob(entry.blob).splitlines(keepends=True) for entry in (old, new)]
    matcher = difflib.SequenceMatcher(None, lines[0], lines[1], autojunk=False)
    found: set[str | None] = set()
    for tag, a, b, _, _ in matcher.get_opcodes():
        if tag != "equal":
            inside = {name for name in names[a:b] if name}
            near = {name for name in [*names[max(a - 1, 0) : a], *names[b : b + 1]] if name}
            touched = inside or near
            found.add(touched.pop() if len(touched) == 1 else None)
    return found.pop() if len(found) == 1 else None


def _ambiguous(unknown: Sequence[str], owners: Mapping[str, Sequence[str]]) -> EditedTreeError:
    lines = [
        f"{path}: " + (f"one of {', '.join(owners[path])}" if owners.get(path) else "of no patch")
        for path in unknown[:8]
    ]
    return EditedTreeError(
        "it cannot be told which patch some edits belong to, so nothing was taken.",
        why="\n        ".join(lines),
        next="name it: `dspatch patch refresh NAME`; or commit them: `git commit --fixup` for a"
        " patch, a commit with a message of its own for a new one",
    )


def _with(repo: git.Repo, base: str, other: str, paths: Sequence[str]) -> str:
    """A tree with some paths as another has them."""
    old, new = repo.entries(base), repo.entries(other)
    wanted = {path: entry for path, entry in old.items() if path not in paths}
    wanted |= {path: new[path] for path in paths if path in new}
    with repo.scratch_index() as index:
        index.add(wanted.values())
        return index.tree()
