"""Forms written and taken back: the change of a patch as a diff, in the patch's folder or the user's own layer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dspatch import paths
from dspatch.carry.editing import folder
from dspatch.patchfile import FORM_SUFFIX, Patch


def path(patch: Patch, engine: str, made_on: str) -> Path:
    """Where a form belongs: beside its patch.toml, but for a patch of the installed package.

    What is installed is not the user's; the form then lies in the own layer, under the patch's name.
    """
    home = patch.folder
    if paths.is_installed(home):
        home = paths.own_patches() / engine / patch.name
    return home / f"{made_on}{FORM_SUFFIX}"


def write(forms: Mapping[Path, bytes]) -> None:
    """Write forms, those of one folder of patches all or none.

    Raises `LockedError` while another process changes the patches.
    """
    _change(forms)


def restore(old: Mapping[Path, bytes | None]) -> None:
    """Put files back to what they held; `None` removes one, and its folder with the last one."""
    _change(old)


def _change(files: Mapping[Path, bytes | None]) -> None:
    for home in sorted({file.parent.parent for file in files}):
        with folder.editing(home):
            folder.change(home, {f: data for f, data in files.items() if f.parent.parent == home})
