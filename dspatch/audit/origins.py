"""From the words of a user to a source: a pin in the cache, a release read where it lies, a fork, a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from dspatch import checkout, paths, pins, pipconfig
from dspatch.audit import recorded, source
from dspatch.audit.source import Nothing, Source
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Published
from dspatch.errors import UnknownRevisionError
from dspatch.git import Repo
from dspatch.pins import Pin, lookup
from dspatch.treefiles import Files

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
        with kept[0].reading():
            yield kept[1]
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
        yield source.of_release(engine, release, client, traffic, native=native)


def of_record(engine: str, version: str) -> Source:
    """A release that cannot be read: it holds no file, and what is known of it was recorded."""
    return Source(
        engine=engine, version=version, kind="record", origin=recorded.path_of(engine).name,
        files=Files(source=Nothing()), outside=lambda path: True,
    )  # fmt: skip


@contextmanager
def of_git(engine: str, repo: str, rev: str) -> Iterator[Source]:
    """A commit, tag or branch of a repository, fetched without its history unless it is kept.

    Raises `UnknownRevisionError`, `OfflineError` and `GitError`.
    """
    # Only where to fetch from is asked of it.
    pin = Pin(engine=engine, rev=rev, sources=(), bases=())
    found = checkout.checkout(pin, source="git", repo=repo, revision=rev)
    with found.repo.reading():
        yield source.of_tree(
            engine, found.repo, found.tree, version=None, kind="git",
            origin=f"{found.origin} ({found.commit[:12]})", whole=True,
        )  # fmt: skip


def of_work_tree(engine: str, folder: str) -> Source:
    """A folder with an engine's sources, as they stand; raises `UnknownRevisionError` without them."""
    root = Path(folder).expanduser().resolve()
    package = pins.engine(engine).package
    if not (root / package / "__init__.py").is_file():
        raise UnknownRevisionError(
            f"{root} holds no sources of {engine}.",
            why=f"there is no {package}/__init__.py",
            next="name a clone's folder, or a revision of a repository with --rev",
        )
    return source.of_folder(
        engine, root, version=None, kind="folder", origin=str(root), package=package
    )


def _kept(pin: Pin) -> tuple[Repo, Source] | None:
    """The tree of a pin, when the cache holds one, and the repository that it is in."""
    folder = paths.cache() / "git" / f"{pin.engine}.git"
    if not folder.is_dir():
        return None
    repo = Repo(folder)
    for each in sorted(pin.sources, key=lambda s: s.kind):
        if each.kind not in _KINDS:
            continue
        tree = repo.resolve(f"refs/pristine/{each.kind}/{each.sha256}^{{tree}}")
        if tree is not None:
            return repo, source.of_tree(
                pin.engine, repo, tree, version=pin.version, kind="pin",
                origin=each.filename, whole=each.kind == "sdist",
            )  # fmt: skip
    return None


def _unpublished(engine: str, rev: str, known: Published) -> UnknownRevisionError:
    newest = known.releases[-1].rev if known.releases else "none"
    versions = [each.rev for each in known.releases]
    near = get_close_matches(f"v{rev.removeprefix('v')}", versions, n=3, cutoff=0.5)
    return UnknownRevisionError(
        f"no index has a release {rev} of {engine}.",
        why=f"{len(known.releases)} are known, the newest is {newest}"
        + (f"; nearest: {', '.join(near)}" if near else ""),
        next=f"for a commit, tag or branch: dspatch audit --engine {engine} --rev {rev} --repo"
        f" {pins.engine(engine).repository}",
    )
