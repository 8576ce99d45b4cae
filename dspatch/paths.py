"""Where things lie: the data that ships with dspatch, the shared cache, the folder of the jobs."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def data(kind: str) -> Path:
    """The folder of `patches` or `templates`. `DSPATCH_DATA` names a folder with your own two."""
    given = os.environ.get("DSPATCH_DATA")
    if given:
        return Path(given).expanduser().resolve() / kind
    # Installed inside the package; beside it in a checkout.
    installed = PACKAGE / kind
    return installed if installed.is_dir() else PACKAGE.parent / kind


def cache() -> Path:
    """The cache that all jobs share: downloads by hash, git objects, oracle environments. `DSPATCH_CACHE` moves it."""
    given = os.environ.get("DSPATCH_CACHE")
    if given:
        return Path(given).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dspatch"


def mirror() -> Path | None:
    """The folder that `dspatch pin mirror` wrote, from which alone packages then come: `DSPATCH_MIRROR`."""
    given = os.environ.get("DSPATCH_MIRROR")
    return Path(given).expanduser().resolve() if given else None


def work() -> Path:
    """The folder of the jobs, `dspatch-work` in the current folder. `DSPATCH_WORK` moves it."""
    return Path(os.environ.get("DSPATCH_WORK", "dspatch-work")).expanduser().resolve()


def own_pins() -> Path:
    """The user's own pins and engines, among the jobs. `DSPATCH_PINS` moves it."""
    given = os.environ.get("DSPATCH_PINS")
    return Path(given).expanduser().resolve() if given else work() / "pins"


def own_patches() -> Path:
    """The user's own patches, a folder an engine, among the jobs. `DSPATCH_PATCHES` moves it."""
    given = os.environ.get("DSPATCH_PATCHES")
    return Path(given).expanduser().resolve() if given else work() / "patches"


def own_templates() -> Path:
    """The templates of the user's own patches: the folder `templates` beside them."""
    return own_patches().parent / "templates"


def is_installed(folder: Path) -> bool:
    """Whether a folder is part of the installed package, where nothing of the user's belongs."""
    return folder.resolve().is_relative_to(PACKAGE)
