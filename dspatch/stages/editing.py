"""`dspatch patch refresh`: what was edited in a job's tree with ordinary git, taken into the patch folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspatch import apply, git, paths, receipt, treefiles, worktree
from dspatch import series as series_module
from dspatch.apply import PatchedTree
from dspatch.carry import chain, layer, projection, takeback
from dspatch.carry.chain import Link, Part
from dspatch.carry.layer import Draft
from dspatch.carry.mail import PatchMail, text
from dspatch.checkout import Checkout
from dspatch.console import Console
from dspatch.errors import EditedTreeError, PatchConflictError
from dspatch.git import Change
from dspatch.job import Job
from dspatch.onto import Place, recorded_form
from dspatch.patchfile import Patch
from dspatch.series import Series
from dspatch.stages import apply as apply_stage
from dspatch.stages.exchange import revision_of
from dspatch.stages.importing import name_of
from dspatch.stages.request import Request, Resolved
from dspatch.traits import Traits

Ask = Callable[[str], str]
SAVED = "refs/dspatch/edited"


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """What became of one patch: the sources that changed, and the files that only a form gives."""

    name: str
    new: bool = False
    sources: tuple[Path, ...] = ()
    form: Path | None = None
    kept_as_form: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What a refresh did; `moved` says that the tree stands at the new series."""

    job: Job
    patches: tuple[Renewed, ...]
    moved: bool
    saved: str


@dataclass(frozen=True, kw_only=True)
class _Tree:
    """A job's tree as somebody left it, beside the series that it was made from."""

    job: Job
    repo: git.Repo
    head: str
    work: str
    resolved: Resolved
    found: Checkout
    series: Series
    patched: PatchedTree
    at: str | None

    @property
    def order(self) -> list[str]:
        """The patches that must have a commit: all, or those up to the one being edited."""
        names = [patch.name for patch in self.patched.patches]
        return names[: names.index(self.at) + 1] if self.at else names

    @property
    def made_on(self) -> str:
        """The name of a form made here."""
        return revision_of(self.resolved, self.found)


def refresh(job: Job, console: Console, ask: Ask, *, into: str | None = None) -> Refreshed:
    """Take what was edited in a job's tree into the patch folders: all of it or nothing.

    Edits that are not committed go `into` the named patch, or the one whose code they change.
    Raises `EditedTreeError` when it cannot be told what belongs where.
    """
    request = request_of(receipt.require(job, "apply"))
    resolved, found = apply_stage.pristine(request, console)
    with (
        console.working("reading the tree") as say,
        layer.editing(request.engine) as draft,
        job.locked(),
    ):
        tree = _read(job, resolved, found)
        saved = _save(tree)
        say("comparing the patches")
        parts = _parts(tree, into)
        renewed = _take_in(tree, draft, parts, ask)
        if draft.changes:
            say("applying the new series")
            _check(tree, draft, parts)
            draft.write()
    moved = _settle(tree, request, console)
    return Refreshed(job=job, patches=renewed, moved=moved, saved=saved)


def request_of(content: Mapping[str, Any]) -> Request:
    """The request that a job was applied with."""
    asked = content["request"]
    return Request(**{**asked, "variants": tuple(asked["variants"])})


def _read(job: Job, resolved: Resolved, found: Checkout) -> _Tree:
    repo = git.Repo(job.tree)
    busy = chain.unfinished(repo)
    if busy:
        raise EditedTreeError(
            f"git is in the middle of {busy} in {job.tree}.",
            next="finish it or abort it there, then run it again",
        )
    series = series_module.layered(resolved.request.engine)
    patched = apply.apply_series(
        series, found, target=resolved.request.target, variants=resolved.variants
    )
    head, known = repo.resolve("HEAD") or "", repo.resolve(worktree.PATCHED)
    tree = _Tree(
        job=job, repo=repo, head=head, work=repo.work_tree(), resolved=resolved, found=found,
        series=series, patched=patched, at=_edited_patch(repo, patched, head),
    )  # fmt: skip
    if known not in {found.commit, patched.commit, *(p.commit for p in patched.patches)}:
        _refuse_outdated(tree)
    return tree


def _edited_patch(repo: git.Repo, patched: PatchedTree, head: str) -> str | None:
    """The patch that the tree stands at, `None` when it has the whole series."""
    commit = repo.resolve(worktree.EDITING)
    name = next((patch.name for patch in patched.patches if patch.commit == commit), None)
    if name is None or patched.commit == commit:
        return None
    later = {patch.name for patch in patched.patches[-1:]}
    links = chain.read(repo, patched.checkout.commit, head)
    return None if any(link.patch in later for link in links) else name


def _refuse_outdated(tree: _Tree) -> None:
    """Stop unless the tree is what the series gives now: a refresh that was cut off behind its end."""
    trees = {tree.patched.tree, *_trees(tree.repo, tree.patched).values()}
    if tree.work in trees:
        return
    raise EditedTreeError(
        f"the patches have changed since {tree.job.tree} was made from them.",
        why="taking the tree's edits in would undo that change",
        next=f"save the edits (`git -C {tree.job.tree} diff {worktree.PATCHED} > my.diff`), run"
        " `dspatch apply --discard-edits`, then apply them to the new tree",
    )


def _trees(repo: git.Repo, patched: PatchedTree) -> dict[str, str]:
    names = [patch.name for patch in patched.patches]
    trees = (
        repo.resolve_all(*(f"{patch.commit}^{{tree}}" for patch in patched.patches))
        if names
        else []
    )
    return {name: tree for name, tree in zip(names, trees, strict=True) if tree}


def _save(tree: _Tree) -> str:
    """Keep what somebody made under a ref of its own, whatever happens next."""
    commit = tree.head
    if tree.repo.resolve(f"{tree.head}^{{tree}}") != tree.work:
        commit = tree.repo.commit_tree(tree.work, tree.head)
    if commit != tree.patched.commit:
        tree.repo.set_ref(f"{SAVED}/{commit[:12]}", commit)
    return commit


def _parts(tree: _Tree, into: str | None) -> list[Part]:
    links = chain.read(tree.repo, tree.found.commit, tree.head)
    gone = [name for name in tree.order if name not in {link.patch for link in links}]
    if gone and tree.work not in _trees(tree.repo, tree.patched).values():
        raise EditedTreeError(
            f"the tree has no commit of {', '.join(gone)}.",
            why="a refresh drops no patch",
            next=f"dspatch patch drop {gone[0]}; or bring its commit back: git -C {tree.job.tree}"
            f" reset --hard {worktree.PATCHED}",
        )
    if gone:  # the series already gives this tree
        return []
    span = (tree.found.commit, tree.head)
    target = into or tree.at or _new_on_top(tree, links)
    if into is not None and into not in {*tree.order, *(link.patch for link in links)}:
        tree.series.patch(into)
        raise EditedTreeError(
            f"{into} is not in the tree, so nothing can go into it.",
            next="dspatch patch list shows which patches this job has",
        )
    steps = [*links, *chain.loose(tree.repo, span, tree.work, into=target, links=links)]
    new = [link for link in steps if link.patch not in tree.order]
    if tree.at and new:
        raise EditedTreeError(
            f"`{new[0].subject}` is a new patch, but the tree stands at {tree.at}.",
            next="fold it into that patch (`git commit --amend`), refresh, and make the new one after",
        )
    parts = chain.parts(tree.repo, tree.found.tree, tree.order, steps)
    if parts and parts[-1].after != tree.work:
        raise EditedTreeError(
            "the patches in the order of the series do not give the tree that stands there.",
            next="bring the commits in that order with `git rebase -i`, then run it again",
        )
    return parts


def _new_on_top(tree: _Tree, links: Sequence[Link]) -> str | None:
    """A patch that was begun with `patch new` takes the edits made since."""
    last = links[-1] if links else None
    return last.patch or last.commit if last and last.patch not in tree.order else None


# -- into the folders --------------------------------------------------------------------------


def _take_in(tree: _Tree, draft: Draft, parts: Sequence[Part], ask: Ask) -> tuple[Renewed, ...]:
    pristine = treefiles.of_tree(tree.found.repo, tree.found.tree)
    place = replace(
        apply.place_of(
            tree.series,
            tree.found,
            Traits(tree.series.traits, pristine.read),
            target=tree.resolved.request.target,
            variants=tree.resolved.variants,
        ),
        # Its objects are the cache's, and what was edited besides.
        repo=tree.repo,
    )
    commits = {patch.name: patch.commit for patch in tree.patched.patches}
    renewed: list[Renewed] = []
    for part in parts:
        if part.name in commits:
            untouched = [link.commit for link in part.links] == [commits[part.name]]
            if not (untouched and part.before == part.head.before):
                renewed += _renewed(tree, draft, part, tree.series.patch(part.name), place)
        elif part.before != part.after:
            names = [patch.name for patch in tree.series.patches] + [one.name for one in renewed]
            renewed.append(_new(tree, draft, part, names, ask))
    return tuple(renewed)


def _renewed(tree: _Tree, draft: Draft, part: Part, patch: Patch, place: Place) -> list[Renewed]:
    said = _said_anew(draft, part, patch)
    files = treefiles.of_tree(tree.repo, part.before)
    wanted = _wanted(tree.repo, part)
    if takeback.gives(patch, files, place, wanted):
        if said:
            layer.refuse_installed(patch)
            draft.changes.update(said)
        return [Renewed(name=patch.name, sources=tuple(said))] if said else []
    if said:
        layer.refuse_installed(patch)
        draft.changes.update(said)
    recorded = recorded_form(patch, place)
    installed = paths.is_installed(patch.folder)
    taken = takeback.TakenBack(left=tuple(sorted(wanted)))
    if patch.renders and recorded is None and not installed:
        taken = takeback.into_sources(draft, patch, files, place, wanted)
    form = None
    if taken.left:
        # What ships inside an installed dspatch stays; the own layer may hold forms of it.
        home = draft.own / patch.name if installed else patch.folder
        form = recorded.path if recorded else home / f"{tree.made_on}.diff"
        form = home / form.name if paths.is_installed(form) else form
        draft.changes[form] = _diff(tree.repo, part)
    kept = taken.left if patch.renders else ()
    sources = tuple(dict.fromkeys([*said, *taken.sources]))
    return [Renewed(name=patch.name, sources=sources, form=form, kept_as_form=kept)]


def _said_anew(draft: Draft, part: Part, patch: Patch) -> dict[Path, bytes]:
    """patch.toml with what the commit's message says now, when somebody reworded it."""
    head = part.head
    fields = dict(head.fields)
    now = {
        "subject": (head.subject, patch.subject),
        "reason": (head.body, patch.reason),
        "upstream": (fields.get("Upstream", ""), patch.upstream),
        "drop-when": (fields.get("Drop-when", ""), patch.drop_when),
    }
    changed = {
        key: new for key, (new, old) in now.items() if new.split() != old.split() and new.strip()
    }
    if not changed or not head.first:
        return {}
    path = patch.folder / "patch.toml"
    return {path: projection.updated(draft.read(path) or b"", keys=changed)}


def _new(tree: _Tree, draft: Draft, part: Part, names: Sequence[str], ask: Ask) -> Renewed:
    head = part.head
    reason = text(head.body) or ask(head.subject)
    mail = PatchMail(subject=head.subject, body=reason, fields=head.fields, diff="")
    name = name_of(mail, names)
    toml = projection.toml(projection.as_table(mail))
    form = f"{tree.made_on}.diff"
    draft.add(name, {"patch.toml": toml, form: _diff(tree.repo, part)})
    return Renewed(name=name, new=True, form=draft.own / name / form)


def _wanted(repo: git.Repo, part: Part) -> dict[str, Change]:
    new = repo.entries(part.after)
    changes = {}
    for path in repo.changed_paths(part.before, part.after):
        entry = new.get(path)
        data = repo.blob(entry.blob) if entry else None
        mode = entry.mode if entry else treefiles.PLAIN
        changes[path] = Change(path=path, data=data, mode=mode)
    return changes


def _diff(repo: git.Repo, part: Part) -> bytes:
    return repo.diff(part.before, part.after).encode("utf-8", "surrogateescape")


def _check(tree: _Tree, draft: Draft, parts: Sequence[Part]) -> None:
    """Raise unless the new series gives the tree that stands there, patch by patch."""
    with draft.tried() as series:
        request = tree.resolved.request
        after = apply.apply_series(
            series, tree.found, target=request.target, variants=tree.resolved.variants
        )
    trees = _trees(tree.found.repo, after)
    wrong = [part.name for part in parts if part.name in trees and trees[part.name] != part.after]
    if wrong or (not tree.at and after.tree != tree.work):
        raise PatchConflictError(
            "the patches, refreshed, would not give the tree that stands there, so nothing was changed.",
            why=f"different after {wrong[0]}" if wrong else f"{after.tree} is not {tree.work}",
            next="save the edits as a diff and report this as a fault of dspatch",
        )


def _settle(tree: _Tree, request: Request, console: Console) -> bool:
    """Put the tree at the new series, which holds the same files; not when somebody edits meanwhile."""
    if tree.repo.work_tree() != tree.work or tree.repo.resolve("HEAD") != tree.head:
        return False
    apply_stage.run(request, console, discard_edits=True)
    tree.repo.set_refs({worktree.EDITING: None})
    return True
