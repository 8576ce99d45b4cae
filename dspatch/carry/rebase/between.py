"""The releases between two revisions, each read where that costs least: the cache, else a remote wheel by range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from dspatch import pins, pipconfig, treefiles
from dspatch.carry.rebase.explain import Release
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releasefiles import ReleaseFiles
from dspatch.checkout import archive_ref
from dspatch.errors import DspatchError
from dspatch.git import Repo
from dspatch.pins import lookup
from dspatch.pins.engines import engine as facts_of
from dspatch.pins.types import Pin

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient


@contextmanager
def between(
    engine: str, old: str, new: str, repo: Repo, note: Callable[[str], None]
) -> Iterator[Iterator[Release]]:
    """The releases newer than one and older than another, oldest first, opened when they are reached.

    None of revisions that are no releases, or where the releases cannot be listed: `note` is told why.
    """
    with pipconfig.client(pipconfig.load()) as client:
        yield _opened(engine, old, new, repo, client, note)


def _opened(
    engine: str,
    old: str,
    new: str,
    repo: Repo,
    client: PyPIClient,
    note: Callable[[str], None],
) -> Iterator[Release]:
    try:
        low, high = Version(old), Version(new)
    except InvalidVersion:
        return
    try:
        published, pinned = releases.published(engine).releases, pins.pinned(engine)
        for release in published:
            if low < Version(release.version) < high:
                yield _cached(pinned, release, repo) or _remote(engine, release, client)
    except DspatchError as error:
        note(f"not every release between {old} and {new} could be asked: {error.what}")


def _cached(pinned: Sequence[Pin], release: releases.Release, repo: Repo) -> Release | None:
    """A release whose pristine tree the cache holds."""
    pin = next((p for p in pinned if lookup.same(p.rev, release.version)), None)
    refs = [f"{archive_ref(source)}^{{tree}}" for source in pin.sources] if pin else []
    for tree in repo.resolve_all(*refs) if refs else []:
        if tree:
            return Release(rev=release.rev, read=treefiles.of_tree(repo, tree).read)
    return None


def _remote(engine: str, release: releases.Release, client: PyPIClient) -> Release:
    """A release whose wheel is opened when something of it is first asked for."""

    @cache
    def files() -> ReleaseFiles:
        return ReleaseFiles(facts_of(engine).sdist, release, client, Traffic())

    return Release(
        rev=release.rev,
        read=lambda path: files().read(path),
        sees=lambda path: not files().beyond(path),
    )
