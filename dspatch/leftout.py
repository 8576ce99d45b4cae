"""What a patch that cannot be applied may rest on: patches that the user's own series leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dspatch.patchfile import Patch
from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Missed:
    """A patch, one that it rests on and that was left out, and the file by which that is known.

    `adds` says that the other one would have made the file; else both change it.
    """

    patch: str
    other: str
    file: str
    adds: bool

    def __str__(self) -> str:
        does = "which adds" if self.adds else "which also changes"
        return f"{self.patch} rests on {self.other}, {does} {self.file} and is left out"


def missed(series: Series, patch: Patch) -> list[Missed]:
    """The left-out patches that add or change files that a patch changes, those first that add them."""
    found = [
        each
        for other in series.patches
        if other.name in series.left_out
        for each in _between(series, patch, other)
    ]
    first: dict[str, Missed] = {}
    for each in sorted(found, key=lambda each: not each.adds):
        first.setdefault(each.other, each)
    return list(first.values())


def way_out(series: Series, first: Missed) -> str:
    """What to do about it, with the file that says so."""
    file = next(
        layer.folder / "series" for layer in series.layers if layer.left_out and not layer.shipped
    )
    return (
        f"leave {first.patch} out, too, by a line `!{first.patch}` in {file};"
        f" or take `!{first.other}` out of it"
    )


def _between(series: Series, patch: Patch, other: Patch) -> Iterator[Missed]:
    others = series.anywhere(other)
    added = {file.path for each in others for file in each.files}
    changed = {edit.file for each in others for edit in each.edits}
    # Edit by edit, each in all the packages where it may be.
    edits = zip(*(each.edits for each in series.anywhere(patch)), strict=True)
    for file in dict.fromkeys(edit.file for places in edits for edit in places):
        if file in added | changed:
            yield Missed(patch=patch.name, other=other.name, file=file, adds=file in added)
