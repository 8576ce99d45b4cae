"""`dspatch patch import`: anyone's change as patches of the own layer, three-way onto the user's pin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import apply
from dspatch.apply import PatchedTree
from dspatch.carry import incoming, layer, projection
from dspatch.carry.layer import Draft
from dspatch.carry.mail import PatchMail
from dspatch.carry.merging import Merged, Onto
from dspatch.carry.recording import record_uses
from dspatch.checkout import Checkout
from dspatch.console import Console
from dspatch.errors import PatchConflictError, PatchFormatError
from dspatch.pins.engines import engine as engine_facts
from dspatch.series import Series
from dspatch.stages.apply import pristine
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
    with layer.editing(request.engine) as draft:
        draft.set_lines(draft.lines())
        with draft.tried() as series:
            if said.name:
                projection.name_of(came.mails[0], [patch.name for patch in series.patches])
            tree = _applied(series, resolved, found)
            merged = Onto(tree=tree, came=came).put()
            taken = _add(draft, series, merged, resolved, revision_of(resolved, found))
        if taken:
            with draft.tried() as series:
                tree = _applied(series, resolved, found)
                _check(tree, merged, series)
                record_uses(draft, [one.name for one in taken], series, tree)
            draft.write()
    new = [one.mail for one in merged]
    return Imported(
        folder=draft.own,
        made_on=revision_of(resolved, found),
        taken=taken,
        upstream=tuple(mail.subject for mail in came.mails if mail not in new),
        next=f"dspatch apply --engine {request.engine} --rev {request.rev}",
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


def _add(
    draft: Draft, series: Series, merged: Sequence[Merged], resolved: Resolved, made_on: str
) -> tuple[Taken, ...]:
    names = [patch.name for patch in series.patches]
    taken = []
    for one in merged:
        name = projection.name_of(one.mail, names)
        names.append(name)
        form = one.diff.encode("utf-8", "surrogateescape")
        written_for = made_on if resolved.revision is None else None
        toml = projection.toml(projection.as_table(one.mail, written_for=written_for))
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
