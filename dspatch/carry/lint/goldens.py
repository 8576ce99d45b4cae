"""Goldens: what a patch is on a pinned revision, kept beside it as mail, to be held against the rendering."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from dspatch.carry.exchange import mail, projection
from dspatch.patchfile import Patch

FOLDER = "golden"


def path(patch: Patch, rev: str) -> Path:
    """Where the golden of a revision is."""
    return patch.folder / FOLDER / f"{rev}.patch"


def text(patch: Patch, diff: str, *, engine: str, rev: str) -> bytes:
    """The golden: a mail that plain `git am` takes."""
    return mail.write(projection.as_mail(patch, diff, engine=engine, made_on=rev))


def revisions(patch: Patch) -> tuple[str, ...]:
    """The revisions of which a patch has goldens."""
    return tuple(
        sorted(p.name.removesuffix(".patch") for p in path(patch, "x").parent.glob("*.patch"))
    )


def difference(kept: bytes, rendered: bytes, name: str) -> str:
    """What a golden lacks and has too much, as a diff from it to the rendering."""
    old, new = (data.decode("utf-8", "replace").splitlines() for data in (kept, rendered))
    return "\n".join(
        unified_diff(old, new, f"{name} (kept)", f"{name} (as it is now)", lineterm="", n=2)
    )
