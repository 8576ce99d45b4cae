"""Carry a plan out so that a kill leaves the old files, or a journal from which the next run finishes."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .manifest import hash_of
from .misfit import LOCKED, Misfit
from .plan import Plan, Write
from .site import target

JOURNAL = "journal.json"
LOCK_SECONDS = 60.0


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep other deltas off a site-packages; raises `Misfit` when one has it for too long."""
    handle = os.open(str(root), os.O_RDONLY)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise Misfit(
                    f"Another delta is at work in {root}.", next="wait for it", code=LOCKED
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def state(root: Path, project: str) -> Path:
    """The folder beside the package that holds new files until they are in place."""
    return root / f".{project}.dspatch-delta"


def carry_out(plan: Plan, folder: Path) -> None:
    """Write and remove what the plan says. Raises `Misfit`, with nothing changed, when it cannot be prepared."""
    try:
        journal = _prepare(plan, folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Misfit(
            f"{plan.site.root} cannot be written; nothing was changed.",
            str(error),
            "make room, or run this as the owner of that folder",
        ) from None
    _finish(plan.site.root, folder, journal)


def interrupted(folder: Path) -> bool:
    """Whether a run was stopped after the point from which it must be finished."""
    return (folder / JOURNAL).exists()


def recover(root: Path, folder: Path) -> bool:
    """Finish what an earlier run was stopped at; whether there was anything to finish."""
    if not interrupted(folder):
        # Stopped while it prepared: no file of the package was touched.
        shutil.rmtree(folder, ignore_errors=True)
        return False
    _finish(root, folder, json.loads((folder / JOURNAL).read_text(encoding="utf-8")))
    return True


def _prepare(plan: Plan, folder: Path) -> Mapping[str, Any]:
    folder.mkdir()
    owner = (plan.site.root / plan.site.info).stat()
    staged = []
    for number, write in enumerate(plan.writes):
        place = folder / str(number)
        _write(place, write.data)
        place.chmod(_mode(plan.site.root, write))
        with suppress(OSError):
            os.chown(str(place), owner.st_uid, owner.st_gid)
        staged.append({"path": write.path, "staged": place.name, "sha256": hash_of(write.data)})
    journal = {"writes": staged, "removals": plan.removals, "sources": plan.sources}
    _write(folder / "journal.new", json.dumps(journal).encode("utf-8"))
    _sync(folder)
    (folder / "journal.new").replace(folder / JOURNAL)
    _sync(folder)
    return journal


def _finish(root: Path, folder: Path, journal: Mapping[str, Any]) -> None:
    """Every step may have been done before: done twice, it does nothing."""
    for row in journal["writes"]:
        _put(root, folder / row["staged"], row)
    for path in journal["removals"]:
        place = target(root, path)
        with suppress(FileNotFoundError):
            place.unlink()
    for path in journal["sources"]:
        _drop_compiled(target(root, path))
    for path in [*journal["removals"], *journal["sources"]]:
        _drop_empty(root, target(root, path).parent)
    for parent in {target(root, row["path"]).parent for row in journal["writes"]}:
        _sync(parent)
    (folder / JOURNAL).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _put(root: Path, staged: Path, row: Mapping[str, str]) -> None:
    place = target(root, row["path"])
    if not staged.exists():
        if not place.is_file() or hash_of(place.read_bytes()) != row["sha256"]:
            raise Misfit(
                f"An interrupted run cannot be finished: {place} is not what it wrote.",
                next="install the base wheel anew, remove " + str(staged.parent),
            )
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.replace(place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        near = place.with_name(f".{place.name}.dspatch")
        shutil.copy2(str(staged), str(near))
        near.replace(place)
        staged.unlink()


def _drop_compiled(source: Path) -> None:
    name = glob.escape(source.name[: -len(".py")])
    for compiled in (source.parent / "__pycache__").glob(f"{name}.*.pyc"):
        with suppress(FileNotFoundError):
            compiled.unlink()


def _drop_empty(root: Path, folder: Path) -> None:
    for each in (folder / "__pycache__", folder, *folder.parents):
        if root not in each.parents:
            break
        try:
            each.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            if each.name != "__pycache__":
                break


def _mode(root: Path, write: Write) -> int:
    if write.like is not None:
        return target(root, write.like).stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask | (0o111 & ~mask if write.executable else 0)


def _write(place: Path, data: bytes) -> None:
    with place.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    with suppress(OSError):
        handle = os.open(str(folder), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
