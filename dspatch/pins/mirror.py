"""A mirror: a folder of packages by hash, with its manifest, index pages and locks; written and checked."""

from __future__ import annotations

import html
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from dspatch.errors import MirrorError
from dspatch.files import sha256, write_atomically

MANIFEST = "mirror.json"
SIMPLE = "simple"
LOCKS = "locks"
GIT = "git"
PINS = "pins"
FORMAT = 1
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a mirror (`size` in bytes), what needs it, and the sdist that a wheel was built from."""

    filename: str
    sha256: str
    size: int
    project: str
    version: str
    needed_by: tuple[str, ...] = ()
    built_from: str = ""


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """What a mirror holds: files by name, and by environment the files that it installs.

    `jobs` are those that it was written for, `python` and `machine` those that its wheels are for.
    """

    files: Mapping[str, File] = field(default_factory=dict)
    environments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    python: str = ".".join(map(str, sys.version_info[:2]))
    machine: str = platform.machine()

    @property
    def size(self) -> int:
        """All files together, in bytes."""
        return sum(file.size for file in self.files.values())

    def with_file(self, file: File) -> Mirror:
        """With one more file, or one more reason for a file that is there."""
        known = self.files.get(file.filename)
        reasons = {*file.needed_by, *(known.needed_by if known else ())}
        files = {**self.files, file.filename: replace(file, needed_by=tuple(sorted(reasons)))}
        return replace(self, files=files)


def read(folder: Path) -> Mirror:
    """The mirror in a folder, an empty one where there is none; raises `MirrorError` for a damaged one."""
    path = folder / MANIFEST
    if not path.exists():
        return Mirror()
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"it has the format {content['format']}, {FORMAT} is read")
        return Mirror(
            files={row["filename"]: _file(row) for row in content["files"]},
            environments={key: tuple(names) for key, names in content["environments"].items()},
            jobs=tuple(content["jobs"]),
            python=content["python"],
            machine=content["machine"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MirrorError(
            f"{path} cannot be read.",
            why=str(error),
            next="remove it and run `dspatch pin mirror` again; files that are right are kept",
        ) from None


def write(folder: Path, mirror: Mirror) -> None:
    """Write manifest, index pages and locks; the manifest last, as it speaks for the others."""
    for path, data in _stale(folder, mirror):
        write_atomically(folder / path, data)
    write_atomically(folder / MANIFEST, _manifest(mirror))


def check(folder: Path) -> Mirror:
    """The mirror, every file of it verified. Raises `MirrorError` naming what is missing, changed or extra."""
    mirror = _required(folder)
    faults = [*_faults(folder, mirror)]
    if faults:
        more = [f"… and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise MirrorError(
            f"The mirror {folder} has {len(faults)} faults.",
            why="\n        ".join(faults[:_SHOWN] + more),
            next=f"dspatch pin mirror {folder}",
        )
    return mirror


def holds(folder: Path, file: File) -> bool:
    """Whether a file is there, with its own bytes."""
    place = folder / file.filename
    return place.is_file() and place.stat().st_size == file.size and sha256(place) == file.sha256


def lock_of(folder: Path, environment: str) -> Path:
    """The requirements with hashes of an environment in a mirror; raises `MirrorError` when it has none."""
    mirror = _required(folder)
    lock = folder / LOCKS / f"{environment}.txt"
    if environment in mirror.environments and lock.is_file():
        return lock
    have = ", ".join(sorted(mirror.environments)) or "none"
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
    raise MirrorError(
        f"The mirror {folder} has not what the environment {environment} installs.",
        why=f"it has {have}, for Python {mirror.python} on {mirror.machine}; this is {here}",
        next=f"where there is a network, with this Python: dspatch pin mirror {folder} --jobs",
    )


def missing(folder: Path, project: str, filename: str) -> MirrorError:
    """The error for a file that the mirror lacks, with the command that gets it."""
    from dspatch.pins import engines
    from dspatch.pins.lookup import version_of

    version = version_of(filename)
    own = (e.name for e in engines().values() if project in e.projects)
    name = next(own, None)
    words = f"--engine {name} --rev v{version}" if name and version else "--jobs"
    return MirrorError(
        f"The mirror {folder} has no {filename}.",
        why=f"DSPATCH_MIRROR names it, so nothing else is asked for {project}",
        next=f"where there is a network: dspatch pin mirror {folder} {words}",
    )


def _required(folder: Path) -> Mirror:
    if not (folder / MANIFEST).is_file():
        raise MirrorError(
            f"{folder} is not a mirror.",
            why=f"it has no {MANIFEST}",
            next=f"dspatch pin mirror {folder} --engine vllm --rev v0.27.1",
        )
    return read(folder)


def _faults(folder: Path, mirror: Mirror) -> Iterator[str]:
    for file in mirror.files.values():
        if not (folder / file.filename).is_file():
            yield f"{file.filename} is missing"
        elif not holds(folder, file):
            yield f"{file.filename} is not what it was: expected sha256 {file.sha256}"
    for path, _ in _stale(folder, mirror):
        yield f"{path} does not say what {MANIFEST} says"
    known = {*mirror.files, MANIFEST, SIMPLE, LOCKS, GIT, PINS}
    for place in sorted(folder.iterdir()):
        if place.name not in known and not place.name.startswith("."):
            yield f"{place.name} is not in {MANIFEST}"


def _stale(folder: Path, mirror: Mirror) -> Iterator[tuple[str, bytes]]:
    """Index pages and locks that are not as the manifest has them, and what they should hold."""
    for path, data in _derived(mirror).items():
        if not (folder / path).is_file() or (folder / path).read_bytes() != data:
            yield path, data


def _derived(mirror: Mirror) -> dict[str, bytes]:
    """Index pages (PEP 503) and locks, by path: all that follows from the manifest."""
    projects: dict[str, list[File]] = {}
    for file in sorted(mirror.files.values(), key=lambda each: each.filename):
        projects.setdefault(canonicalize_name(file.project), []).append(file)
    pages = {f"{SIMPLE}/index.html": _page(f"{name}/" for name in sorted(projects))}
    for name, files in projects.items():
        links = (f"../../{quote(file.filename)}#sha256={file.sha256}" for file in files)
        pages[f"{SIMPLE}/{name}/index.html"] = _page(links)
    for name, filenames in mirror.environments.items():
        pages[f"{LOCKS}/{name}.txt"] = _lock(mirror.files[each] for each in filenames)
    return pages


def _page(links: Iterable[str]) -> bytes:
    rows = [f'<a href="{html.escape(link)}">{_label(link)}</a><br>' for link in links]
    return "\n".join(["<!DOCTYPE html>", "<html><body>", *rows, "</body></html>", ""]).encode()


def _label(link: str) -> str:
    return html.escape(link.partition("#")[0].rstrip("/").rpartition("/")[2])


def _lock(files: Iterable[File]) -> bytes:
    rows = (f"{file.project}=={file.version} --hash=sha256:{file.sha256}" for file in files)
    return "".join(f"{row}\n" for row in sorted(rows)).encode()


def _manifest(mirror: Mirror) -> bytes:
    content = {
        "format": FORMAT,
        **asdict(mirror),
        "files": [asdict(mirror.files[name]) for name in sorted(mirror.files)],
    }
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def _file(row: Mapping[str, Any]) -> File:
    if "/" in row["filename"] or row["filename"].startswith("."):
        raise ValueError(f"{row['filename']!r} is no plain file name")
    return File(**{**row, "needed_by": tuple(row["needed_by"])})
