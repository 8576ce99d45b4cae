"""Folders changed as a whole: exchanged in one step, or by a journal that the next command finishes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dspatch import paths
from dspatch.errors import LockedError
from dspatch.files import disk_full_explained, write_atomically

JOURNAL = ".dspatch-transaction"
LOCK_SECONDS = 60
_PLAN = "plan.json"
_STAGING = ".dspatch-staging."
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def editing(folder: Path) -> Iterator[None]:
    """Keep other dspatch processes from changing a folder; a change that was cut off is finished.

    Raises `LockedError`.
    """
    locks = paths.cache() / "locks"
    with disk_full_explained(locks):
        locks.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    try:
        with FileLock(locks / f"{key}.lock", timeout=LOCK_SECONDS):
            _finish(folder)
            yield
    except Timeout:
        raise LockedError(
            f"another dspatch process has been changing {folder} for {LOCK_SECONDS} s.",
            next="wait for it to end and run the command again",
        ) from None


def finish(folder: Path) -> None:
    """Finish a change of a folder that was cut off, so that what is read next is whole."""
    if (folder / JOURNAL).exists():
        with editing(folder):
            pass


def change(folder: Path, changes: Mapping[Path, bytes | None]) -> None:
    """Write and remove files, in `folder` or elsewhere on its disk: all of it or nothing.

    The caller holds `editing(folder)`. Killed before the plan is in place, nothing has changed;
    after that, `finish` ends what was begun.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with disk_full_explained(folder):
        staging = Path(tempfile.mkdtemp(dir=folder, prefix=_STAGING))
        try:
            _stage(staging, folder, changes)
            staging.rename(folder / JOURNAL)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        _finish(folder)


def replace(final: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder hold exactly these files: whoever looks sees the old folder or the new one."""
    final = final.resolve()
    with editing(final), disk_full_explained(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{final.name}{_STAGING}"
        for left in final.parent.glob(f"{prefix}*"):
            shutil.rmtree(left)
        staging = Path(tempfile.mkdtemp(dir=final.parent, prefix=prefix))
        try:
            _fill(staging, files)
            if not final.exists():
                staging.rename(final)
            elif Path.cwd().is_relative_to(final) or not _exchange(staging, final):
                # Whoever stands in the folder would find himself in the old one.
                gone = {path: None for path in final.rglob("*") if path.is_file()}
                change(final, gone | {final / name: data for name, data in files.items()})
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _fill(staging: Path, files: Mapping[str, bytes]) -> None:
    staging.chmod(0o755)
    for name, data in files.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_bytes(data)


def _exchange(new: Path, old: Path) -> bool:
    """Swap two folders in one step, where the system can."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    names = (os.fsencode(new), os.fsencode(old))
    return bool(swap(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _stage(staging: Path, folder: Path, changes: Mapping[Path, bytes | None]) -> None:
    plan = []
    for number, (path, data) in enumerate(sorted(changes.items())):
        staged = None if data is None else str(number)
        if data is not None:
            _write_durably(staging / str(number), data)
        plan.append([os.path.relpath(path, folder), staged])
    _write_durably(staging / _PLAN, json.dumps(plan).encode())


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _finish(folder: Path) -> None:
    """Carry out the plan that is in place, from wherever it was left; then forget it."""
    for left in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(left)
    journal = folder / JOURNAL
    if not journal.exists():
        return
    with suppress(FileNotFoundError):  # without a plan, all was done and its removal was cut off
        for name, staged in json.loads((journal / _PLAN).read_text()):
            _carry_out(folder, folder / name, journal / staged if staged else None)
        (journal / _PLAN).unlink()
    shutil.rmtree(journal)


def _carry_out(folder: Path, path: Path, staged: Path | None) -> None:
    if staged is None:
        path.unlink(missing_ok=True)
        _prune(path.parent, folder)
    elif staged.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            staged.replace(path)
        except OSError:  # the folders of patches and of templates may lie on two disks
            write_atomically(path, staged.read_bytes())
            staged.unlink()


def _prune(left: Path, folder: Path) -> None:
    """Remove a folder that a change emptied; `folder` itself stays."""
    if left.exists() and left.resolve() != folder.resolve() and not any(left.iterdir()):
        left.rmdir()
