"""Small file operations that leave the old state or the new, never one between."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspatch.errors import DiskFullError, DspatchError, NotWritableError

CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOVE = "move the cache and the jobs with DSPATCH_CACHE and DSPATCH_WORK"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file's content in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_explained(path.parent):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def write_if_changed(path: Path, data: bytes) -> bool:
    """Replace a file's content in one step where it is not so already; whether it was written."""
    changed = not path.exists() or path.read_bytes() != data
    if changed:
        write_atomically(path, data)
    return changed


@contextmanager
def folder_in_one_step(final: Path) -> Iterator[Path]:
    """A new folder to fill beside `final`; it takes that name only when the block ends well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_explained(final.parent):
        building = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
        try:
            yield building
            building.replace(final)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise


@contextmanager
def disk_full_explained(folder: Path) -> Iterator[None]:
    """Turn "no space left" into an error that says where, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _full(str(folder), error) from None


def told(error: OSError) -> DspatchError | None:
    """A full or read-only disk as an error that says where, and what to do; `None` for other causes."""
    if error.errno in _FULL:
        return _full(error.filename or "the cache or the jobs", error)
    if not is_denied(error):
        return None
    return NotWritableError(
        f"{error.filename or 'a file'} may not be written.", why=str(error), next=_MOVE
    )


def is_denied(error: OSError) -> bool:
    """Whether a disk is read-only, or belongs to somebody else."""
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _full(where: str, error: OSError) -> DiskFullError:
    return DiskFullError(
        f"The disk that holds {where} is full.",
        why=str(error),
        next=f"free some space, or {_MOVE}",
    )


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
