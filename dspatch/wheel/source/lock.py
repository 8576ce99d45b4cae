"""The packages of a build environment, each by hash: resolved once, then installed as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from dspatch.engines import Progress, environment, resolve, silent
from dspatch.engines.environment import Environment
from dspatch.errors import MirrorError, SourceBuildError
from dspatch.files import write_atomically

FILE = "lock.txt"
# The package of CUDA's runtime library names the CUDA that torch beside it was built with.
_RUNTIME = re.compile(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+\.\d+)", re.MULTILINE)


def locked(wanted: Sequence[str], folder: Path, progress: Progress = silent) -> str:
    """The lock of these requirements: one line a package, with its hash.

    It is kept in `folder`, so that the same requirements give the same files the next time. Raises
    `SourceBuildError`.
    """
    path, asked = folder / FILE, folder / "requirements.json"
    if not path.is_file() or not asked.is_file() or json.loads(asked.read_text()) != list(wanted):
        progress("resolving what the build needs")
        write_atomically(path, _resolved(wanted).encode())
        write_atomically(asked, json.dumps(list(wanted)).encode())
    return path.read_text()


def ensure(kind: str, folder: Path, progress: Progress = silent) -> Environment:
    """The environment of the lock that a folder holds. Raises `EngineEnvironmentError`."""
    path = folder / FILE
    lock = path.read_text()
    # Nothing is asked for by a build that brings its own.
    words = ["--no-deps", "--require-hashes", "--requirement", str(path)] if lock else []
    return environment.ensure(kind, words, key=lock, progress=progress)


def cuda_of(lock: str) -> Version | None:
    """The CUDA of the torch in a lock, before anything is installed; `None` where it does not tell."""
    # Without torch, compiled members are not bound to a CUDA.
    found = _RUNTIME.search(lock) if version_of(lock, "torch") else None
    return Version(found[1]) if found else None


def version_of(lock: str, project: str) -> str | None:
    """The version of a project in a lock."""
    for line in lock.splitlines():
        name, _, rest = line.partition("==")
        if name == project:
            return rest.partition(" ")[0]
    return None


def _resolved(wanted: Sequence[str]) -> str:
    try:
        packages = resolve.resolve(wanted) if wanted else ()
    except MirrorError as error:
        raise SourceBuildError(
            "What the build needs cannot be had.", why=error.why, next=error.next
        ) from None
    lines = [f"{each.project}=={each.version} --hash=sha256:{each.sha256}" for each in packages]
    return "".join(f"{line}\n" for line in lines)
