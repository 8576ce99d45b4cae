"""One file from one address onto the disk: streamed, resumed, verified, moved into place whole."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dspatch import files
from dspatch.errors import DiskFullError, DownloadError, HashMismatchError, OfflineError
from dspatch.pipconfig import CHECK_NETWORK, redact

if TYPE_CHECKING:
    import httpx2
    from unearth.fetchers import PyPIClient

RESUMES = 3
PAUSE = 0.2  # seconds before the first resume; doubled each time


class Progress(Protocol):
    """Told after each chunk how many bytes are there, and of how many when that is known."""

    def __call__(self, done: int, total: int | None) -> None: ...


def fetch(
    client: PyPIClient,
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Fetch `url` to `target` through `<target>.part`, which an interrupted fetch leaves to resume.

    `size` is in bytes. Raises `OfflineError`, `DownloadError`, `DiskFullError`, or
    `HashMismatchError`; a file with the wrong bytes is removed.
    """
    part = target.with_name(target.name + ".part")
    resumed = _have(part) > 0
    _check_room(part, size)
    try:
        with files.disk_full_explained(part.parent):
            _resume(client, url, part, size, progress)
    except DiskFullError:
        part.unlink()  # what is there fills the disk that is already full
        raise
    found = files.sha256(part)
    if sha256 and found != sha256:
        part.unlink()
        if resumed:  # the part came from an earlier run, perhaps from another mirror
            fetch(client, url, target, sha256=sha256, size=size, progress=progress)
            return
        raise mismatch(target.name, sha256, found, where=redact(url))
    part.replace(target)


def mismatch(filename: str, wanted: str, found: str, *, where: str) -> HashMismatchError:
    """The error for bytes that are not the expected ones, with both hashes."""
    return HashMismatchError(
        f"{filename} does not have the sha256 that was expected.",
        why=f"expected {wanted}, found {found} at {where}",
        next="use an index that serves the published file; if the pin is wrong, write it anew with "
        "`dspatch pin add`",
    )


class _Interrupted(Exception):
    """The connection ended before the file did."""


def _resume(
    client: PyPIClient, url: str, part: Path, size: int | None, progress: Progress | None
) -> None:
    import httpx2

    for attempt in range(RESUMES + 1):
        try:
            return _stream(client, url, part, size, progress)
        except httpx2.TransportError as error:
            failure: Exception = error
        except _Interrupted as error:
            failure = error
        if attempt < RESUMES:
            time.sleep(PAUSE * 2**attempt)
    raise _give_up(failure, url, part, size) from failure


def _stream(
    client: PyPIClient, url: str, part: Path, size: int | None, progress: Progress | None
) -> None:
    have = _have(part)
    if size is not None and have == size:
        return
    # Without `identity` a server may compress, and then a range counts other bytes than ours.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if have and not _continues(response, have):
            have = 0
        if response.status_code == 416:
            part.unlink()
            raise _Interrupted("the server cannot resume where the file stopped")
        _check_status(response, url)
        done = _write(response, part, have, size, progress)
    if size is not None and done < size:
        raise _Interrupted(f"{done} of {size} bytes came")


def _continues(response: httpx2.Response, have: int) -> bool:
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(
        f"bytes {have}-"
    )


def _check_status(response: httpx2.Response, url: str) -> None:
    status = response.status_code
    if status >= 500 or status == 429:
        raise _Interrupted(f"the server answered {status} {response.reason_phrase}")
    if status not in (200, 206):
        raise DownloadError(
            f"{redact(url)} cannot be downloaded.",
            why=f"the server answered {status} {response.reason_phrase}",
            next="check the package index in pip's configuration (`pip config list`)",
        )


def _write(
    response: httpx2.Response, part: Path, have: int, size: int | None, progress: Progress | None
) -> int:
    length = response.headers.get("Content-Length", "")
    total = size if size is not None else (have + int(length) if length.isdigit() else None)
    done = have
    with part.open("ab" if have else "wb") as stream:
        for chunk in response.iter_raw():
            stream.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
            if size is not None and done > size:  # never the pinned file: stop, the hash will tell
                break
    return done


def _have(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _check_room(part: Path, size: int | None) -> None:
    missing = (size or 0) - _have(part)
    free = shutil.disk_usage(part.parent).free
    if missing > free:
        raise DiskFullError(
            f"There is no room for {part.stem} in {part.parent}.",
            why=f"{missing} bytes are missing and {free} are free",
            next="free some space, or move the cache with DSPATCH_CACHE",
        )


def _give_up(failure: Exception, url: str, part: Path, size: int | None) -> Exception:
    import httpx2

    why = f"{redact(url)}: {failure or type(failure).__name__}"
    if isinstance(failure, httpx2.ConnectError | httpx2.ConnectTimeout) and not _have(part):
        return OfflineError(f"{part.stem} cannot be fetched.", why=why, next=CHECK_NETWORK)
    came = f"{_have(part)} of {size} bytes" if size is not None else f"{_have(part)} bytes"
    return DownloadError(
        f"{part.stem} was cut short {RESUMES + 1} times.",
        why=f"{why} ({came} are kept)",
        next="run the command again: it resumes where it stopped",
    )
