"""Package indexes as pip is configured to see them: list, find, download verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from dspatch import fetch, indexpage, paths, pipconfig
from dspatch.errors import DownloadError, HashMismatchError, LockedError, OfflineError
from dspatch.fetch import Progress
from dspatch.files import sha256 as hash_of
from dspatch.indexpage import Ask, IndexFile

__all__ = [
    "IndexFile",
    "Listing",
    "Progress",
    "cached",
    "download",
    "download_listed",
    "files",
    "find",
    "holds",
    "listing",
]

LOCK_SECONDS = 3600.0  # a CUDA wheel over a slow line


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A project's files over all indexes, and why some could not be asked (`offline`: network)."""

    files: tuple[IndexFile, ...]
    problems: tuple[str, ...] = ()
    offline: bool = False


def listing(project: str) -> Listing:
    """A project's files over all indexes and find-links, in pip's order, whichever can be asked."""
    import httpx2
    from unearth.collector import LinkCollectError

    config = pipconfig.load()
    found: list[IndexFile] = []
    problems: list[str] = []
    offline = False
    with pipconfig.client(config) as client:
        asks: list[tuple[str, Ask]] = [(each, indexpage.project_page) for each in config.indexes]
        asks += [(each, indexpage.find_links) for each in config.find_links]
        for place, ask in asks:
            try:
                found += ask(client, place, project)
            except (httpx2.HTTPError, httpx2.InvalidURL, LinkCollectError, ValueError) as error:
                offline |= isinstance(error, httpx2.TransportError)
                problems.append(f"{pipconfig.redact(place)}: {error or type(error).__name__}")
    return Listing(files=tuple(found), problems=tuple(problems), offline=offline)


def files(project: str) -> tuple[IndexFile, ...]:
    """A project's files, none when no index has it.

    Raises `OfflineError` or `DownloadError` when none was found and an index could not be asked.
    """
    found = listing(project)
    if found.files or not found.problems:
        return found.files
    error = OfflineError if found.offline else DownloadError
    raise error(
        f"The files of {project} cannot be listed.",
        why="; ".join(found.problems),
        next=pipconfig.CHECK_NETWORK,
    )


def find(project: str, filename: str) -> IndexFile:
    """The file of that name; raises `DownloadError` when no index has it, or as `files` does."""
    return _named(project, filename)[0]


def download(
    project: str,
    filename: str,
    sha256: str,
    dest_dir: Path | None = None,
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """The file with that hash, from the cache (then the network is not touched) or from an index.

    `dest_dir` defaults to `downloads/<sha256>` of the cache; `size` is in bytes. Processes that
    want the same file at once fetch it once. Raises `HashMismatchError`, `DownloadError`,
    `OfflineError`, `DiskFullError` or `LockedError`; only verified bytes ever get the file's name.
    """
    target = (dest_dir or paths.cache() / "downloads" / sha256) / filename
    if holds(target, sha256):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if not holds(target, sha256):  # the process that held the lock may have fetched it
            target.unlink(missing_ok=True)
            _download(project, target, sha256, size, progress)
    return target


def holds(target: Path, sha256: str) -> bool:
    """Whether a file is there and has that hash."""
    return target.is_file() and hash_of(target) == sha256


def cached(file: IndexFile) -> Path | None:
    """Where a file of which the index states the hash is in the cache, `None` where it is not."""
    place = paths.cache() / "downloads" / (file.sha256 or "") / file.filename
    return place if file.sha256 is not None and holds(place, file.sha256) else None


def download_listed(project: str, file: IndexFile, progress: Progress | None = None) -> Path:
    """A file as an index lists it, in the cache under its hash (measured when none is listed).

    Raises as `download` does.
    """
    if file.sha256 is not None:
        return download(project, file.filename, file.sha256, size=file.size, progress=progress)
    downloads = paths.cache() / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=downloads) as folder:
        part = Path(folder) / file.filename
        with pipconfig.client(pipconfig.load()) as client:
            fetch.fetch(client, file.url, part, size=file.size, progress=progress)
        final = downloads / hash_of(part) / file.filename
        final.parent.mkdir(exist_ok=True)
        part.replace(final)
    return final


def _named(project: str, filename: str) -> list[IndexFile]:
    named = [file for file in files(project) if file.filename == filename]
    if not named:
        if (mirror := paths.mirror()) is not None:
            from dspatch.pins.mirror import missing

            raise missing(mirror, project, filename)
        raise DownloadError(
            f"No package index has {filename}.",
            why=f"the project {project} lists no such file",
            next="check index-url, extra-index-url and find-links (`pip config list`)",
        )
    return named


def _download(
    project: str, target: Path, sha256: str, size: int | None, progress: Progress | None
) -> None:
    named = _named(project, target.name)
    matching = [file for file in named if file.sha256 in (sha256, None)]
    if not matching:
        where = pipconfig.redact(named[0].url)
        raise fetch.mismatch(target.name, sha256, str(named[0].sha256), where=where)
    with pipconfig.client(pipconfig.load()) as client:
        for file in matching:
            one = partial(fetch.fetch, client, file.url, target, sha256=sha256, progress=progress)
            try:
                one(size=file.size if size is None else size)
                return
            except (DownloadError, OfflineError, HashMismatchError):
                if file is matching[-1]:  # no other mirror is left
                    raise


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(target.with_name(target.name + ".lock"), timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise LockedError(
            f"Another process has been fetching {target.name} for {LOCK_SECONDS:.0f} s.",
            next=f"wait for it, or stop it and remove {error.lock_file}",
        ) from error
