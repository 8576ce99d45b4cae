"""A series on a published release that is no pin, of which only what patches and traits ask for is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dspatch import pins, pipconfig, render
from dspatch.bases import Bases
from dspatch.carry.lint.released import Released, on_release
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releasefiles import ReleaseFiles
from dspatch.carry.remote.wheelbases import WheelBases
from dspatch.checkout import cache_of
from dspatch.errors import DownloadError
from dspatch.git import Repo
from dspatch.onto import Place
from dspatch.traits import Traits
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from dspatch.series import Series
    from dspatch.variants import Variant


@contextmanager
def opened(
    series: Series, rev: str, target: str, variants: Sequence[Variant]
) -> Iterator[Released]:
    """The series on a release, of which more can be read as long as it is open.

    Raises `DownloadError` when no index has it, and as `ReleaseFiles` does.
    """
    project, published = pins.engine(series.engine).sdist, releases.published(series.engine)
    release = published.release(rev)
    if release is None:
        raise DownloadError(
            f"No index has the release {rev} of {series.engine}.",
            why=f"{len(published.releases)} are of interest",
            next=pipconfig.CHECK_NETWORK,
        )
    with cache_of(series.engine) as cache:
        repo = Repo(cache.path)
    traffic, made_on = Traffic(), Bases(series=series, target=target, variants=variants)
    with pipconfig.client(pipconfig.load()) as client:
        bases = WheelBases(project, published, client, traffic, made_on)
        files = ReleaseFiles(project, release, client, traffic)
        place = Place(
            engine=series.engine,
            rev=release.rev,
            commit="",
            repo=repo,
            context=render.Context(traits=Traits(series.traits, files.read), variants=variants),
            provide=lambda patch, form: bases.provide(patch, form, repo),
            base_paths=lambda patch, form: bases.paths(form),
        )
        yield on_release(series, Files(source=files), place, target=target, variants=variants)
