"""A series on a published release that is no pin, of which only what patches and traits ask for is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dspatch import pipconfig
from dspatch.carry.lint.released import Released, on_release
from dspatch.carry.remote import openreleases, releases
from dspatch.errors import DownloadError
from dspatch.series import TARGETS
from dspatch.traits import Traits
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from dspatch.carry.remote.openreleases import OpenReleases
    from dspatch.series import Series
    from dspatch.variants import Variant


@contextmanager
def opened(series: Series, variants: Sequence[Variant]) -> Iterator[OpenReleases]:
    """The releases that a series can be put on, one listing and one client for all of them.

    Raises `OfflineError` and `DownloadError` when no index can be asked.
    """
    published = releases.published(series.engine)
    with openreleases.opened(series, variants, TARGETS, published) as found:
        yield found


def released(at: OpenReleases, rev: str, target: str) -> Released:
    """The series on a release, of which more can be read as long as the releases are open.

    Raises `DownloadError` when no index has it, and as `ReleaseFiles` does.
    """
    release = at.published.release(rev)
    if release is None:
        raise DownloadError(
            f"No index has the release {rev} of {at.series.engine}.",
            why=f"{len(at.published.releases)} are of interest",
            next=pipconfig.CHECK_NETWORK,
        )
    files = at.files(release)
    place = at.place(release, Traits(at.series.traits, files.read), target)
    return on_release(at.series, Files(source=files), place, target=target, variants=at.variants)
