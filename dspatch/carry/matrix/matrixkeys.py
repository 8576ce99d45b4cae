"""What a cell of the matrix is a function of, as one hash: a patch, those it stands on, and the code that tries it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import diffs, files, traits
from dspatch.apply import CODE
from dspatch.carry.uses import usesfile
from dspatch.series import digest_of

if TYPE_CHECKING:
    from dspatch.patchfile import Patch
    from dspatch.series import Series
    from dspatch.variants import Variant

# The modules whose code decides a verdict, beside those that decide what a patched tree looks like.
_CODE = (
    Path(__file__).parents[2] / "carry/matrix/matrix.py",
    Path(__file__).parents[2] / "carry/matrix/watched.py",
    Path(__file__).parents[2] / "carry/remote/releasefiles.py",
)


class Keys:
    """The hash of each patch's inputs, and the patches that it stands on."""

    def __init__(self, series: Series, variants: Sequence[Variant]) -> None:
        self._series = series
        self._variants = [f"{variant.name} {variant!r}" for variant in variants]
        self._touched = {patch.name: frozenset(_touched(series, patch)) for patch in series.patches}

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {patch.name: self._own_digest(patch) for patch in self._series.patches}

    @cached_property
    def all(self) -> dict[str, str]:
        """By patch, one hash over all that a cell depends on, but for the release and the target."""
        return {patch.name: self._key(patch) for patch in self._series.patches}

    def _key(self, patch: Patch) -> str:
        stands_on = [self._digests[name] for name in self.stands_on([patch.name])]
        inputs = [stands_on, self._variants, self._shared]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]

    def stands_on(self, names: Iterable[str]) -> list[str]:
        """The patches given and all before them that change files they change, in order."""
        wanted = set(names)
        found: list[str] = []
        touched: set[str] = set()  # by those found so far
        for patch in reversed(self._series.patches):
            own = self._touched[patch.name]
            if patch.name in wanted or own & touched:
                found.append(patch.name)
                touched |= own
        return found[::-1]

    def only(self, names: Iterable[str]) -> Series:
        """The series with those patches and what they stand on."""
        kept = set(self.stands_on(names))
        patches = tuple(patch for patch in self._series.patches if patch.name in kept)
        return replace(self._series, patches=patches)

    @cached_property
    def _shared(self) -> str:
        """The code, and the templates that no patch names: others include them."""
        named = {
            patch.templates / file.template
            for patch in self._series.patches
            for file in patch.files
        }
        included = [
            path
            for layer in self._series.layers
            for path in sorted(layer.templates.rglob("*.j2"))
            if path not in named
        ]
        return digest_of([*included, *CODE, *_CODE])

    def _own_digest(self, patch: Patch) -> str:
        asked = {name: self._series.traits[name].question for name in self._traits(patch)}
        uses = patch.folder / usesfile.NAME
        inputs = [
            patch.name,
            self._series.patch_digest(patch),
            # By its own bytes: the digest of a patch leaves out what is generated.
            files.sha256(uses) if uses.exists() else "",
            asked,
            patch.name in self._series.left_out,
        ]
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()

    def _traits(self, patch: Patch) -> set[str]:
        """The traits that decide whether a patch is needed and what code it is, and those they rest on."""
        named = {name.removeprefix("!") for name in patch.needs} | set(
            patch.asks(self._series.traits)
        )
        return traits.rests_on([{"trait": name} for name in named], self._series.traits)


def _touched(series: Series, patch: Patch) -> Iterator[str]:
    """The files that a patch may change, wherever a release has them."""
    for placed in series.anywhere(patch):
        yield from (new.path for new in placed.files)
        yield from (edit.file for edit in placed.edits)
    for form in patch.forms:
        for part in diffs.read(form.diff):
            yield from part.paths
