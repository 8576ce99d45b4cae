"""Bytes of one file by range: over HTTP, or from a copy on this disk."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from dspatch import fetch
from dspatch.errors import DownloadError, OfflineError
from dspatch.pipconfig import CHECK_NETWORK, redact

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

TAIL = 1 << 16  # the end of a wheel holds its directory, or most of it


class NoRangesError(Exception):
    """The server sends whole files only."""


class _AgainError(Exception):
    """An answer that may be better the next time."""


@dataclass(kw_only=True)
class Traffic:
    """What came over the network, counted from all threads: bytes of files, and requests."""

    bytes: int = 0
    requests: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def count(self, size: int, requests: int = 1) -> None:
        """Add what one answer brought."""
        with self._lock:
            self.bytes += size
            self.requests += requests


class Ranges(Protocol):
    """A file that is read in pieces; `end` is not part of a piece."""

    def size(self) -> int:
        """The file's size in bytes."""

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range that lies within the file."""


class FileRanges:
    """A file on this disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self) -> int:
        """The file's size in bytes."""
        return self._path.stat().st_size

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range that lies within the file."""
        with self._path.open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)


class HttpRanges:
    """A file of a server; the first request asks for its end, which is kept.

    Its methods raise `NoRangesError` when the server answers with the whole file, otherwise
    `DownloadError` or `OfflineError`.
    """

    def __init__(self, client: PyPIClient, url: str, traffic: Traffic) -> None:
        self._client = client
        self._url = url
        self._traffic = traffic
        self._size: int | None = None
        self._tail = b""

    def size(self) -> int:
        """The file's size in bytes."""
        if self._size is None:
            self._tail, self._size = self._ask(f"bytes=-{TAIL}")
        return self._size

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range that lies within the file."""
        kept_from = (self._size or end) - len(self._tail)
        if self._tail and end > kept_from:
            kept = self._tail[max(0, start - kept_from) : end - kept_from]
            return (self.read(start, kept_from) if start < kept_from else b"") + kept
        data, _ = self._ask(f"bytes={start}-{end - 1}")
        if len(data) != end - start:
            raise self._failed(f"{len(data)} bytes came for {end - start}")
        return data

    def _ask(self, wanted: str) -> tuple[bytes, int]:
        import httpx2

        for attempt in range(fetch.RESUMES + 1):
            try:
                return self._answer(wanted)
            except (httpx2.TransportError, _AgainError) as error:
                failure: Exception = error
            if attempt < fetch.RESUMES:
                time.sleep(fetch.PAUSE * 2**attempt)
        raise self._failed(str(failure) or type(failure).__name__, failure) from failure

    def _answer(self, wanted: str) -> tuple[bytes, int]:
        # Without `identity` a server may compress, and then a range counts other bytes than ours.
        headers = {"Accept-Encoding": "identity", "Range": wanted}
        with self._client.stream("GET", self._url, headers=headers) as response:
            status = response.status_code
            if status == 200:
                self._traffic.count(0)
                raise NoRangesError
            if status >= 500 or status == 429:
                raise _AgainError(f"the server answered {status} {response.reason_phrase}")
            if status != 206:
                raise self._failed(f"the server answered {status} {response.reason_phrase}")
            data = b"".join(response.iter_raw())
            self._traffic.count(len(data))
            return data, _whole_size(data, response.headers.get("Content-Range", ""))

    def _failed(self, why: str, cause: Exception | None = None) -> DownloadError | OfflineError:
        import httpx2

        offline = isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout)
        kind = OfflineError if offline else DownloadError
        return kind(f"{redact(self._url)} cannot be read in parts.", why=why, next=CHECK_NETWORK)


def _whole_size(data: bytes, header: str) -> int:
    """The whole file's size, as the header of a part states it, which must be as long as it says."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", header)
    if found is None:
        raise _AgainError(f"the server sent a part without saying which: {header!r}")
    first, last, size = map(int, found.groups())
    if len(data) != last - first + 1:
        raise _AgainError(f"{len(data)} of {last - first + 1} bytes came")
    return size
