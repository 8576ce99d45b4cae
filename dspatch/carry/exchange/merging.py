"""Changes that came from somewhere put onto a patched tree, one on top of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspatch import treefiles
from dspatch.apply import PatchedTree
from dspatch.carry.exchange import projection
from dspatch.carry.exchange.incoming import Incoming
from dspatch.carry.exchange.mail import PatchMail
from dspatch.carry.upstreamed import already
from dspatch.checkout import cache_of, checkout
from dspatch.errors import DspatchError, PatchConflictError
from dspatch.git import NewCommit, Repo
from dspatch.pins import lookup
from dspatch.threeway import How, Labels, MergeConflictError, Outcome, apply_diff
from dspatch.treefiles import Files


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A change as it came onto the pin, on top of those before it: how, its diff, the tree it gives."""

    mail: PatchMail
    how: How
    note: str
    paths: tuple[str, ...]
    diff: str
    tree: str


@dataclass(frozen=True, kw_only=True)
class Onto:
    """A patched tree that changes are put onto, and where the files they were made on may be."""

    tree: PatchedTree
    came: Incoming

    @property
    def repo(self) -> Repo:
        return self.tree.checkout.repo

    def put(self) -> list[Merged]:
        """All changes in order, but for those that change nothing here."""
        files = treefiles.of_tree(self.repo, self.tree.tree)
        fitting: list[tuple[PatchMail, Outcome]] = []
        for mail in self.came.mails:
            outcome = self._one(mail, files)
            if outcome.how != "upstream" and outcome.changes:
                fitting.append((mail, outcome))
                files = files.with_changes(outcome.changes)
        return self._written(fitting)

    def _one(self, mail: PatchMail, files: Files) -> Outcome:
        where = f"{self.tree.checkout.engine} {self.tree.checkout.rev}"
        try:
            return apply_diff(
                self.repo,
                mail.diff,
                files,
                provide=lambda: self._provide(mail),
                labels=Labels(ours=where, theirs=mail.subject),
                settle=lambda: already.outcome(self.repo, mail.diff, files),
            )
        except MergeConflictError as error:
            raise PatchConflictError(
                f"`{mail.subject}` does not fit {where}, so nothing was imported.",
                why=error.why,
                next=self._next(error),
            ) from None

    def _next(self, error: MergeConflictError) -> str:
        if any(conflict.kind == "no base" for conflict in error.conflicts):
            return (
                "give the commit or the pull request instead of its diff, or --repo with a clone"
                " that has the files it was made on"
            )
        return "make the change by hand in the job's tree, then `dspatch patch new NAME`"

    def _provide(self, mail: PatchMail) -> bool:
        return self.came.provide(mail.diff, self.repo) or self._provide_release(mail)

    def _provide_release(self, mail: PatchMail) -> bool:
        """The files of an export: its release, with the patches of the export before this one."""
        said = projection.made_on(mail)
        if said is None or said[0] != self.tree.checkout.engine:
            return False
        try:
            base = checkout(lookup.load(*said))
            files = treefiles.of_tree(base.repo, base.tree)
            for earlier in self.came.mails[: self.came.mails.index(mail)]:
                changes = apply_diff(base.repo, earlier.diff, files).changes
                base.repo.write_blobs([each.data for each in changes.values() if each.data])
                files = files.with_changes(changes)
        except DspatchError:
            return False
        return True

    def _written(self, fitting: Sequence[tuple[PatchMail, Outcome]]) -> list[Merged]:
        commits = [
            NewCommit(
                message=mail.subject,
                changes=[outcome.changes[path] for path in sorted(outcome.changes)],
            )
            for mail, outcome in fitting
        ]
        if not commits:
            return []
        with cache_of(self.tree.checkout.engine) as repo:
            ids = repo.write_commits("refs/importing/patches", self.tree.commit, commits)
        trees = self.repo.resolve_all(*(f"{oid}^{{tree}}" for oid in ids))
        return [
            Merged(
                mail=mail,
                how=outcome.how,
                note=outcome.note,
                paths=tuple(sorted(outcome.changes)),
                diff=diff,
                tree=tree or "",
            )
            for (mail, outcome), diff, tree in zip(
                fitting, self.repo.diffs(ids), trees, strict=True
            )
        ]


def from_strict(
    mails: Sequence[PatchMail], names: Sequence[str], tree: PatchedTree
) -> list[Merged] | None:
    """The changes as the last patches of a series, so named, that was applied with their diffs as forms.

    `None` unless every one of them came on strictly: then their order and their diffs are right.
    """
    new = tree.patches[-len(mails) :]
    notes = {item.patch.name: item.why for item in tree.plan}
    strict = all(patch.how == "strict" and not notes[patch.name] for patch in new)
    if [patch.name for patch in new] != list(names) or not strict:
        return None
    repo, ids = tree.checkout.repo, [patch.commit for patch in new]
    trees = repo.resolve_all(*(f"{oid}^{{tree}}" for oid in ids))
    return [
        Merged(mail=mail, how="strict", note="", paths=patch.paths, diff=diff, tree=oid or "")
        for mail, patch, diff, oid in zip(mails, new, repo.diffs(ids), trees, strict=True)
    ]
