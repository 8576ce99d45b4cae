"""From a revision to its source: a pinned checkout in the cache, or a release read where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dspatch import paths, pins, pipconfig
from dspatch.audit import source
from dspatch.audit.source import Source
from dspatch.carry import releases
from dspatch.carry.ranges import Traffic
from dspatch.carry.releasefiles import ReleaseFiles
from dspatch.carry.releases import Published
from dspatch.errors import UnknownRevisionError
from dspatch.git import Repo
from dspatch.pins import Pin, lookup

_KINDS = ("sdist", "wheel")


@contextmanager
def of_rev(engine: str, rev: str, traffic: Traffic, *, native: bool = False) -> Iterator[Source]:
    """The source of a release: from the cache where it holds a pin's tree, else by range reads.

    Raises `UnknownEngineError`, `UnknownRevisionError` for what is no release, and the errors of
    reading an index.
    """
    pin = next((each for each in pins.pinned(engine) if lookup.same(each.rev, rev)), None)
    kept = _kept(pin) if pin is not None else None
    if kept is not None:
        repo = Repo(paths.cache() / "git" / f"{engine}.git")
        with repo.reading():
            yield kept
        return
    with published(engine, rev, traffic, native=native) as found:
        yield found


@contextmanager
def published(
    engine: str, rev: str, traffic: Traffic, *, native: bool = False, among: Published | None = None
) -> Iterator[Source]:
    """The source of a published release, read where it lies."""
    known = among or releases.published(engine, prereleases=True, yanked=True)
    release = known.release(rev)
    if release is None:
        raise _unpublished(engine, rev, known)
    with pipconfig.client(pipconfig.load()) as client:
        sdist_only = release.wheel is None
        files = ReleaseFiles(
            pins.engine(engine).sdist, release, client, traffic, native=native or sdist_only
        )
        yield source.of_release(engine, files)


def _kept(pin: Pin) -> Source | None:
    """The tree of a pin, when the cache holds one."""
    folder = paths.cache() / "git" / f"{pin.engine}.git"
    if not folder.is_dir():
        return None
    repo = Repo(folder)
    for each in sorted(pin.sources, key=lambda s: s.kind):
        if each.kind not in _KINDS:
            continue
        tree = repo.resolve(f"refs/pristine/{each.kind}/{each.sha256}^{{tree}}")
        if tree is not None:
            return source.of_tree(
                pin.engine, repo, tree, version=pin.version, kind="pin",
                origin=each.filename, whole=each.kind == "sdist",
            )  # fmt: skip
    return None


def _unpublished(engine: str, rev: str, known: Published) -> UnknownRevisionError:
    newest = known.releases[-1].rev if known.releases else "none"
    return UnknownRevisionError(
        f"no index has a release {rev} of {engine}.",
        why=f"{len(known.releases)} are known, the newest is {newest}",
        next=f"for a commit, tag or branch: dspatch audit --engine {engine} --rev {rev} --repo"
        f" {pins.engine(engine).repository}",
    )
