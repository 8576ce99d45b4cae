"""Releases that patches are put on where they lie: the files of each, and its place, as long as they are open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import pins, pipconfig, render
from dspatch.bases import Bases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releasefiles import ReleaseFiles
from dspatch.carry.remote.wheelbases import WheelBases
from dspatch.checkout import cache_of
from dspatch.git import Repo
from dspatch.onto import Place

if TYPE_CHECKING:
    from pathlib import Path

    from unearth.fetchers import PyPIClient

    from dspatch.carry.remote.releases import Published, Release
    from dspatch.series import Series
    from dspatch.traits import Traits
    from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class OpenReleases:
    """What all releases that a series is put on have in common.

    `bases` gives, by target, what a form was made on; `repository` is the engine's shared cache of git
    objects.
    """

    series: Series
    variants: Sequence[Variant]
    published: Published
    project: str
    bases: Mapping[str, WheelBases]
    client: PyPIClient
    traffic: Traffic
    repository: Path

    def files(self, release: Release, *, native: bool = False) -> ReleaseFiles:
        """The files of a release; raises as `ReleaseFiles` does."""
        return ReleaseFiles(self.project, release, self.client, self.traffic, native=native)

    def place(self, release: Release, facts: Traits, target: str) -> Place:
        """Where patches are put on a release; made in the thread that puts them there."""
        repo = Repo(self.repository)  # each thread has git processes of its own
        bases = self.bases[target]
        return Place(
            engine=self.series.engine,
            rev=release.rev,
            commit="",
            repo=repo,
            context=render.Context(traits=facts, variants=self.variants, format=self.series.format),
            provide=lambda patch, form: bases.provide(patch, form, repo),
            base_paths=lambda patch, form: bases.paths(form),
        )


@contextmanager
def opened(
    series: Series, variants: Sequence[Variant], targets: Sequence[str], published: Published
) -> Iterator[OpenReleases]:
    """The published releases of the engine of a series, one client for all of them."""
    project, traffic = pins.engine(series.engine).sdist, Traffic()
    with cache_of(series.engine) as repo:  # made under its lock, then only added to
        pass
    with pipconfig.client(pipconfig.load()) as client:
        behind = {
            target: Bases(series=series, target=target, variants=variants) for target in targets
        }
        yield OpenReleases(
            series=series,
            variants=variants,
            published=published,
            project=project,
            bases={
                target: WheelBases(project, published, client, traffic, behind[target])
                for target in targets
            },
            client=client,
            traffic=traffic,
            repository=repo.path,
        )
