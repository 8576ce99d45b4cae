"""`dspatch patch import`: anyone's change as patches of the own layer, three-way onto the user's pin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch.apply import PatchedTree
from dspatch.carry.editing import layer
from dspatch.carry.editing.layer import Draft
from dspatch.carry.editing.recording import record_uses
from dspatch.carry.exchange import incoming, merging, projection
from dspatch.carry.exchange.incoming import Incoming
from dspatch.carry.exchange.mail import PatchMail
from dspatch.carry.exchange.merging import Merged, Onto
from dspatch.checkout import Checkout
from dspatch.console import Console
from dspatch.errors import DiffFormatError, PatchConflictError, PatchFormatError
from dspatch.patchfile import FORM_SUFFIX
from dspatch.pins.engines import engine as engine_facts
from dspatch.series import Series
from dspatch.stages.apply import computed, pristine
from dspatch.stages.exchange import revision_of
from dspatch.stages.request import Request, Resolved

Ask = Callable[[str], str]


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
    """What an import did: the new patches, and the subjects of changes that are there already."""

    folder: Path
    made_on: str
    taken: tuple[Taken, ...]
    upstream: tuple[str, ...]
    next: str


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
    job = _Target(resolved=resolved, found=found)
    with layer.editing(request.engine) as draft:
        draft.set_lines(draft.lines())
        names = job.names(draft)
        if said.name:
            projection.check_free(said.name, names)
        merged = job.strictly(draft, came.mails, names) or job.merged(draft, came)
        taken = job.add(draft, merged, names)
        if taken:
            with draft.tried() as series:
                tree = job.applied(series)
                _check(tree, merged, series)
                record_uses(draft, [one.name for one in taken], series, tree)
            draft.write()
    new = [one.mail for one in merged]
    return Imported(
        folder=draft.own,
        made_on=job.made_on,
        taken=taken,
        upstream=tuple(mail.subject for mail in came.mails if mail not in new),
        next=f"dspatch apply --engine {request.engine} --rev {request.rev}",
    )


def _origin(resolved: Resolved, said: Said, repo: str | None) -> incoming.Origin:
    upstream = engine_facts(resolved.request.engine).repository
    return incoming.Origin(
        repo=repo or upstream, upstream=upstream, release=resolved.pin.tag, squash=said.squash
    )


def _completed(mails: Sequence[PatchMail], said: Said, ask: Ask) -> tuple[PatchMail, ...]:
    """The mails with what the command line says, and with a reason each."""
    if said.name and len(mails) > 1:
        raise PatchFormatError(
            f"--name names one patch, and there are {len(mails)}.",
            next="leave --name out, or take a branch as one patch with --squash",
        )
    if said.name:
        projection.check_name(said.name)
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


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The pin that changes are put onto, and how they become patches for it."""

    resolved: Resolved
    found: Checkout

    @property
    def made_on(self) -> str:
        return revision_of(self.resolved, self.found)

    def names(self, draft: Draft) -> list[str]:
        with draft.tried() as series:
            return [patch.name for patch in series.patches]

    def applied(self, series: Series) -> PatchedTree:
        return computed(series, self.resolved, self.found)

    def strictly(
        self, draft: Draft, mails: Sequence[PatchMail], names: Sequence[str]
    ) -> list[Merged] | None:
        """All changes as one series, if every one applies as it came: many go through git at once."""
        trial = Draft(engine=draft.engine, changes=dict(draft.changes))
        as_they_came = [
            Merged(mail=mail, how="strict", note="", paths=(), diff=mail.diff, tree="")
            for mail in mails
        ]
        new = [taken.name for taken in self.add(trial, as_they_came, names)]
        try:
            with trial.tried() as series:
                return merging.from_strict(mails, new, self.applied(series))
        except (PatchConflictError, DiffFormatError):
            return None

    def merged(self, draft: Draft, came: Incoming) -> list[Merged]:
        """The changes one by one, each strictly or merged, without those that are there already."""
        with draft.tried() as series:
            return Onto(tree=self.applied(series), came=came).put()

    def add(
        self, draft: Draft, merged: Sequence[Merged], names: Sequence[str]
    ) -> tuple[Taken, ...]:
        """Add a patch for each change to the draft."""
        taken: list[Taken] = []
        for one in merged:
            name = projection.name_of(one.mail, [*names, *(each.name for each in taken)])
            written_for = self.made_on if self.resolved.revision is None else None
            toml = projection.toml(projection.as_table(one.mail, written_for=written_for))
            form = one.diff.encode("utf-8", "surrogateescape")
            draft.add(name, {"patch.toml": toml, f"{self.made_on}{FORM_SUFFIX}": form})
            taken.append(
                Taken(
                    name=name,
                    subject=one.mail.subject,
                    how=one.how,
                    paths=one.paths,
                    note=one.note,
                )
            )
        return tuple(taken)


def _check(tree: PatchedTree, merged: Sequence[Merged], series: Series) -> None:
    """Raise when the new patches would not give the tree that they were made for."""
    new = series.patches[-len(merged) :]
    applying = {item.patch.name for item in tree.plan if item.applies}
    wanted = merged[-1].tree
    if all(patch.name in applying for patch in new) and tree.tree != wanted:
        raise PatchConflictError(
            "the imported patches do not give the same tree when they are applied again.",
            why=f"imported {wanted}, applied {tree.tree}",
        )
