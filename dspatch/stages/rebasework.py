"""Both sides of a rebase: the series on the old revision, the new one's tree, and every patch between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dspatch import apply, batch, pins, series, treefiles
from dspatch.apply import PatchedTree
from dspatch.carry.rebase import between, rebase
from dspatch.carry.rebase.carried import Carried, Side
from dspatch.carry.rebase.history import Span
from dspatch.carry.rebase.rebasestate import Wanted
from dspatch.carry.uses import drift, guard
from dspatch.carry.uses.drift import Drift
from dspatch.checkout import Checkout
from dspatch.console import Console
from dspatch.errors import SignatureDriftError, UnknownRevisionError, UnpinnedRevisionError
from dspatch.series import Series
from dspatch.stages import apply as apply_stage
from dspatch.stages import explaining
from dspatch.stages.request import Request, Resolved, resolve
from dspatch.traits import Traits


@dataclass(frozen=True, kw_only=True)
class Work:
    """Both sides of a rebase, and what becomes of every patch between them.

    `drift` tells upstream symbols that are not what the patches were written for.
    """

    wanted: Wanted
    resolved: Resolved
    old: PatchedTree
    new: Side
    carried: tuple[Carried, ...]
    span: Span | None = None
    drift: str = ""

    @property
    def made_on(self) -> str:
        """What a form made here is named after: the release, or the commit where there is none."""
        released = self.resolved.revision is None
        return self.resolved.pin.rev if released else self.new.checkout.commit

    def first_conflict(self) -> Carried | None:
        """Where the rebase stops; patches that nobody asked about do not stop it."""
        names = self.wanted.names
        return next(
            (
                one
                for one in self.carried
                if one.status == "conflict" and (not names or one.patch.name in names)
            ),
            None,
        )


def work(wanted: Wanted, skipped: Collection[str], console: Console) -> Work:
    """Fetch both revisions, apply the series on the old one, and take each patch to the new."""
    patches = series.layered(wanted.engine)
    for name in wanted.names:
        patches.patch(name)
    before, old_checkout = apply_stage.pristine(_request(wanted, wanted.rev), console)
    resolved, new_checkout = apply_stage.pristine(_request(wanted, wanted.onto), console)
    with console.working(f"rebasing onto {wanted.onto}") as step:
        step(f"the series on {wanted.rev}")
        old = apply.apply_series(
            patches,
            old_checkout,
            target=wanted.target,
            variants=before.variants,
            guarded=False,
        )
        new = _side(patches, resolved, new_checkout, wanted)
        span = explaining.upstream_history(wanted, console)
        step(f"the series on {wanted.onto}")
        with old_checkout.repo.reading(), new_checkout.repo.reading():
            carried = rebase.carry(old, new, skipped=skipped, span=span)
            changed = _changed(new, carried, patches, console)
    return Work(
        wanted=wanted,
        resolved=resolved,
        old=old,
        new=new,
        carried=tuple(carried),
        span=span,
        drift=changed,
    )


def _changed(new: Side, carried: Sequence[Carried], patches: Series, console: Console) -> str:
    """What changed of the upstream symbols that the patches use, of which apply would make an error."""
    done = [result for result in rebase.results(carried) if result.outcome is not None]
    files = batch.after(new.files, done)
    engine, repo = new.checkout.engine, new.checkout.repo

    def dated(one: Drift) -> Drift:
        with between.between(engine, one.written_for, new.rev, repo, console.note) as releases:
            found = drift.since(one, ((release.rev, release.read) for release in releases))
        return replace(one, since=found or new.rev)

    try:
        guard.check(
            f"{engine} {new.rev}", [one.patch for one in done], files, patches.traits, dated
        )
    except SignatureDriftError as error:
        return f"{error.what} {error.why}".strip()
    return ""


def _side(patches: series.Series, resolved: Resolved, found: Checkout, wanted: Wanted) -> Side:
    files = treefiles.of_tree(found.repo, found.tree)
    facts = Traits(patches.traits, files.read)
    families = [variant.families for variant in resolved.variants]
    return Side(
        rev=wanted.onto,
        checkout=found,
        files=files,
        place=apply.place_of(
            patches, found, facts, target=wanted.target, variants=resolved.variants
        ),
        plan=patches.plan(facts, wanted.target, families),
    )


def resolved(wanted: Wanted, rev: str) -> Resolved:
    """One of the two revisions, looked up. Raises as `resolve` does."""
    return resolve(_request(wanted, rev))


def _request(wanted: Wanted, rev: str) -> Request:
    """A revision as a pin, or, when it is none, as one of the given repository."""
    request = Request(engine=wanted.engine, rev=rev, target=wanted.target, variants=wanted.variants)
    try:
        pins.load(wanted.engine, rev)
    except (UnknownRevisionError, UnpinnedRevisionError):
        if wanted.repo is None or wanted.base is None:
            raise
        return replace(request, repo=wanted.repo, base=wanted.base)
    return request
