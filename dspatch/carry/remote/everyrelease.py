"""One thing done for each of many releases, a few at a time; what came of it in the releases' order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from dspatch.carry.remote.releases import Release
from dspatch.errors import (
    DownloadError,
    DspatchError,
    HashMismatchError,
    UnsafeArchiveError,
    WheelError,
)

T = TypeVar("T")

JOBS = 6  # releases at once; one index serves them all
# One release's files that cannot be had say nothing of the others.
OF_ONE = (DownloadError, HashMismatchError, UnsafeArchiveError, WheelError)


def each(
    releases: Sequence[Release], one: Callable[[Release], T], told: Callable[[int], None]
) -> dict[str, T]:
    """What `one` gives for each release, by version; `told` is called with how many are done.

    Raises what `one` raises, and starts no further release then.
    """
    found: dict[str, T] = {}
    with ThreadPoolExecutor(JOBS) as pool:
        futures = {pool.submit(one, release): release for release in releases}
        try:
            for future in as_completed(futures):
                found[futures[future].version] = future.result()
                told(len(found))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {release.version: found[release.version] for release in releases}


def unread(release: Release, error: DspatchError) -> str:
    """That a release's files could not be had, and why."""
    return f"{release.version} could not be read: {error.what} {error.why}"
