"""Bring the files that a form was made on into git's reach: its release's tree, then the patches before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dspatch import diffs, pins
from dspatch.checkout import Checkout, checkout
from dspatch.errors import DspatchError, PatchConflictError

if TYPE_CHECKING:
    from dspatch.git import Repo
    from dspatch.patchfile import Form, Patch
    from dspatch.series import Series
    from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Bases:
    """The trees that the forms of a series were made on, each fetched when a merge first needs it."""

    series: Series
    target: str
    variants: Sequence[Variant]

    def provide(self, patch: Patch, form: Form, repo: Repo) -> bool:
        """Put a form's old blobs into the cache, and say whether they are there.

        Raises `PatchConflictError` when that release cannot be had.
        """
        pristine = self._pristine(form)
        if pristine is not None and not _known(form, repo):
            self._apply_those_before(patch, pristine)
        return _known(form, repo)

    def paths(self, form: Form, repo: Repo) -> Collection[str]:
        """The paths of the tree that a form was made on; none when it cannot be had."""
        pristine = self._pristine(form)
        return repo.entries(pristine.tree).keys() if pristine else ()

    def _pristine(self, form: Form) -> Checkout | None:
        if len(form.made_on) == 40:
            return None  # a commit of somebody's: its blobs are in the cache or nowhere
        try:
            return checkout(pins.load(self.series.engine, form.made_on))
        except DspatchError as error:
            raise PatchConflictError(
                f"{form.path.name} was made on {form.made_on}, which cannot be had to merge from.",
                why=error.what + (f" ({error.why})" if error.why else ""),
                next=error.next,
            ) from None

    def _apply_those_before(self, patch: Patch, pristine: Checkout) -> None:
        from dspatch.apply import apply_series

        earlier = self.series.patches[: self.series.patches.index(patch)]
        before = replace(self.series, patches=earlier)
        # For its blobs only; whether the patches are right there is not asked.
        apply_series(before, pristine, target=self.target, variants=self.variants, guarded=False)


def _known(form: Form, repo: Repo) -> bool:
    ids = [part.old_blob for part in diffs.read(form.diff) if part.old_path and part.old_blob]
    return repo.has_all(ids)
