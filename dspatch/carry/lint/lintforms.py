"""Lint rules on patches held as diffs: readable, with full blob ids, and made on something that can be had."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dspatch import diffs, pins
from dspatch.carry.lint.lint import Fault, Rule
from dspatch.checkout import cache_of
from dspatch.errors import DiffFormatError, DspatchError
from dspatch.patchfile import Form, Patch
from dspatch.series import Series

_FULL = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOTHING = re.compile(r"0+")


def forms(series: Series) -> Iterator[Fault]:
    """Every form: it can be read, and names by full ids the files that it was made on."""
    pinned = _pinned(series.engine) if any(patch.forms for patch in series.patches) else ()
    for patch in series.patches:
        for form in patch.forms:
            try:
                files = diffs.read(form.diff)
            except DiffFormatError as error:
                yield _fault(
                    "form", patch, form, f"it cannot be read: {error.what}", "export it again"
                )
                continue
            short = [file.path for file in files if file.hunks and not _is_full(file.old_blob)]
            if short:
                yield _fault(
                    "full-index", patch, form, f"{', '.join(short)}: no full blob ids",
                    "make it with `git diff --full-index`, or `dspatch patch refresh`",
                )  # fmt: skip
                continue
            blobs = [f.old_blob for f in files if f.old_blob and not _NOTHING.fullmatch(f.old_blob)]
            if not _can_be_had(series.engine, pinned, form, blobs):
                yield _fault(
                    "blobs", patch, form, f"nobody has the files of {form.made_on} that it was made on",
                    f"pin that revision: dspatch pin add --engine {series.engine} --rev {form.made_on}",
                )  # fmt: skip


def _is_full(blob: str | None) -> bool:
    return blob is None or _FULL.fullmatch(blob) is not None


def _pinned(engine: str) -> tuple[str, ...]:
    try:
        return tuple(pin.rev for pin in pins.pinned(engine))
    except DspatchError:  # an engine that nobody has described; the cache may know it
        return ()


def _can_be_had(engine: str, pinned: Sequence[str], form: Form, blobs: list[str]) -> bool:
    """Whether a three-way merge could find the old files: a pin names them, or the cache has them."""
    if any(pins.lookup.same(rev, form.made_on) for rev in pinned):
        return True
    with cache_of(engine) as repo:
        return repo.has_all(blobs)


def _fault(rule: str, patch: Patch, form: Form, what: str, next: str) -> Fault:
    return Fault(
        rule=rule, patch=patch.name, where=f"{patch.name}/{form.path.name}", what=what, next=next
    )


RULES: tuple[Rule, ...] = (forms,)
