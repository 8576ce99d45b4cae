"""`dspatch patch import`: anyone's change as patches of the own layer, three-way onto the user's pin."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import apply, treefiles
from dspatch.apply import PatchedTree
from dspatch.carry import already, incoming, layer, projection
from dspatch.carry.incoming import Incoming
from dspatch.carry.layer import Draft
from dspatch.carry.mail import PatchMail
from dspatch.checkout import Checkout, cache_of, checkout
from dspatch.console import Console
from dspatch.errors import DspatchError, PatchConflictError, PatchFormatError
from dspatch.git import NewCommit, Repo
from dspatch.pins import lookup
from dspatch.pins.engines import engine as engine_facts
from dspatch.series import Series
from dspatch.stages.apply import pristine
from dspatch.stages.exchange import revision_of
from dspatch.stages.request import Request, Resolved
from dspatch.threeway import Labels, MergeConflictError, Outcome, apply_diff
from dspatch.treefiles import Files

Ask = Callable[[str], str]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the command line says of the patches that are imported."""

    name: str | None = None
    reason: str | None = None
    upstream: str | None = None
    drop_when: str | None = None
    squash: bool = False


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A patch that was imported: how its diff came onto the pin, and what it changes there."""

    name: str
    subject: str
    how: str
    paths: tuple[str, ...]
    note: str


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did: the new patches, and the subjects of changes that upstream already has."""

    folder: Path
    made_on: str
    taken: tuple[Taken, ...]
    upstream: tuple[str, ...]


def run(
    request: Request, source: str, said: Said, console: Console, ask: Ask, *, repo: str | None
) -> Imported:
    """Turn anyone's change into patches of the own layer: all that it holds, or nothing.

    `ask` gives the reason of a change that does not say it. Raises `PatchConflictError` for one
    that does not fit the pin, and `PatchFormatError` for a name that is taken.
    """
    resolved, found = pristine(request, console)
    with console.working(f"reading {source}"):
        came = incoming.read(source, _origin(resolved, said, repo), named_repo=repo is not None)
    came = replace(came, mails=_completed(came.mails, said, ask))
    with layer.editing(request.engine) as draft:
        draft.set_lines(draft.lines())
        with draft.tried() as series:
            if said.name:
                name_of(came.mails[0], [patch.name for patch in series.patches])
            tree = _applied(series, resolved, found)
            merged = _Onto(tree=tree, resolved=resolved, came=came).put()
            taken = _add(draft, series, merged, revision_of(resolved, found))
        if taken:
            with draft.tried() as series:
                _check(_applied(series, resolved, found), merged, series)
            draft.write()
    new = [one.mail for one in merged]
    return Imported(
        folder=draft.own,
        made_on=revision_of(resolved, found),
        taken=taken,
        upstream=tuple(mail.subject for mail in came.mails if mail not in new),
    )


def _origin(resolved: Resolved, said: Said, repo: str | None) -> incoming.Origin:
    upstream = engine_facts(resolved.request.engine).repository
    return incoming.Origin(
        repo=repo or upstream, upstream=upstream, release=resolved.pin.tag, squash=said.squash
    )


def _applied(series: Series, resolved: Resolved, found: Checkout) -> PatchedTree:
    return apply.apply_series(
        series, found, target=resolved.request.target, variants=resolved.variants
    )


def _completed(mails: Sequence[PatchMail], said: Said, ask: Ask) -> tuple[PatchMail, ...]:
    """The mails with what the command line says, and with a reason each."""
    if said.name and len(mails) > 1:
        raise PatchFormatError(
            f"--name names one patch, and there are {len(mails)}.",
            next="leave --name out, or take a branch as one patch with --squash",
        )
    if said.name:
        check_name(said.name)
    given = {"Patch": said.name, "Upstream": said.upstream, "Drop-when": said.drop_when}
    told = tuple((name, value) for name, value in given.items() if value)
    return tuple(
        replace(
            mail,
            body=said.reason or mail.body or ask(mail.subject),
            fields=told + tuple(item for item in mail.fields if not given.get(item[0])),
        )
        for mail in mails
    )


# -- onto the pin ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A change as it came onto the pin, on top of those before it: the outcome and its diff."""

    mail: PatchMail
    outcome: Outcome
    diff: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class _Onto:
    """A patched tree that changes are put onto, and where the files they were made on may be."""

    tree: PatchedTree
    resolved: Resolved
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
        return [
            Merged(mail=mail, outcome=outcome, diff=diff, commit=oid)
            for (mail, outcome), diff, oid in zip(fitting, self.repo.diffs(ids), ids, strict=True)
        ]


# -- into the own layer ------------------------------------------------------------------------


def _add(draft: Draft, series: Series, merged: Sequence[Merged], made_on: str) -> tuple[Taken, ...]:
    names = [patch.name for patch in series.patches]
    taken = []
    for one in merged:
        name = name_of(one.mail, names)
        names.append(name)
        form = one.diff.encode("utf-8", "surrogateescape")
        toml = projection.toml(projection.as_table(one.mail))
        draft.add(name, {"patch.toml": toml, f"{made_on}.diff": form})
        paths = tuple(sorted(one.outcome.changes))
        taken.append(
            Taken(
                name=name,
                subject=one.mail.subject,
                how=one.outcome.how,
                paths=paths,
                note=one.outcome.note,
            )
        )
    return tuple(taken)


def check_name(name: str) -> None:
    """Raise `PatchFormatError` for what cannot be the name of a folder."""
    if not _NAME.fullmatch(name):
        raise PatchFormatError(
            f"`{name}` cannot be the name of a patch.",
            why="a name is letters, digits, `-`, `_` and `.`, for it is the name of a folder",
        )


def name_of(mail: PatchMail, names: Sequence[str]) -> str:
    """The name of a new patch: the one it brings, otherwise words of its subject, numbered if taken.

    Raises `PatchFormatError` when the one it brings is taken.
    """
    brought = mail.get("Patch")
    if _NAME.fullmatch(brought):
        if brought in names:
            raise PatchFormatError(
                f"there is a patch `{brought}` already.", next="give another --name"
            )
        return brought
    base = projection.slug(mail.subject)
    return next(
        name for n in range(1, 1000) if (name := f"{base}-{n}" if n > 1 else base) not in names
    )


def _check(tree: PatchedTree, merged: Sequence[Merged], series: Series) -> None:
    """Raise when the new patches would not give the tree that they were made for."""
    new = series.patches[-len(merged) :]
    applying = {item.patch.name for item in tree.plan if item.applies}
    wanted = tree.checkout.repo.resolve(f"{merged[-1].commit}^{{tree}}")
    if all(patch.name in applying for patch in new) and tree.tree != wanted:
        raise PatchConflictError(
            "the imported patches do not give the same tree when they are applied again.",
            why=f"imported {wanted}, applied {tree.tree}",
        )
