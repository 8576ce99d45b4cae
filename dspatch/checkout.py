"""Pin -> Checkout: the pristine tree of a revision, as a commit in the engine's shared bare cache."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock, Timeout

from dspatch import archive, git, paths, pins
from dspatch.errors import (
    GitError,
    HashMismatchError,
    LockedError,
    MirrorError,
    OfflineError,
    UnknownRevisionError,
)
from dspatch.files import disk_full_explained
from dspatch.pins.types import Pin, Source

if TYPE_CHECKING:
    from dspatch.fetch import Progress

SourceKind = Literal["auto", "git", "sdist", "wheel"]
LOCK_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The pristine tree of a revision: where its objects lie, and which source it was taken from.

    `revision` is what git calls it where it is not the release `rev`, only nearest to it.
    """

    engine: str
    rev: str
    source: str
    origin: str
    repo: git.Repo
    commit: str
    tree: str
    revision: str | None = None

    @property
    def title(self) -> str:
        """Engine and revision, as messages call it."""
        return f"{self.engine} {self.revision or self.rev}"


def checkout(
    pin: Pin,
    *,
    source: SourceKind = "auto",
    repo: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Checkout:
    """The pristine tree of a pin, fetched and verified by hash unless the cache holds it.

    `auto` takes git when `repo` or `revision` is given, otherwise the sdist, otherwise the wheel.
    """
    kind = _kind(pin, source, repo, revision)
    with cache_of(pin.engine) as bare:
        if kind == "git":
            found = _from_git(pin, bare, repo, revision or pin.tag)
            if revision is not None:
                return replace(found, revision=revision)
            _check_commit(pin, found)
            return found
        return _from_archive(pin, bare, _source(pin, kind), progress)


@contextmanager
def cache_of(engine: str) -> Iterator[git.Repo]:
    """The bare cache of an engine, kept from other processes while it is written to.

    One that may only be read serves what it holds, without a lock.
    """
    folder = paths.cache() / "git"
    if not os.access(folder, os.W_OK) and (folder / f"{engine}.git" / "HEAD").exists():
        yield git.Repo(folder / f"{engine}.git")
        return
    with disk_full_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f"{engine}.lock", timeout=LOCK_SECONDS):
            yield git.init_bare(folder / f"{engine}.git")
    except Timeout:
        raise LockedError(
            f"another dspatch process has held the cache of {engine} for {LOCK_SECONDS} s.",
            next=f"wait for it to end; if none runs, remove {folder / f'{engine}.lock'}",
        ) from None


def source_of(pin: Pin, kind: SourceKind = "auto") -> Source:
    """The pinned source of a kind; raises `UnknownRevisionError` when the pin has none."""
    return _source(pin, _kind(pin, kind, None, None))


def git_ref(url: str, revision: str) -> str:
    """Where the cache keeps a revision of a repository."""
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    return f"refs/pristine/git/{key}/{_ref_part(revision)}"


def archive_ref(source: Source) -> str:
    """Where the cache keeps the tree of a pinned archive."""
    return f"refs/pristine/{source.kind}/{source.sha256}"


def _kind(pin: Pin, source: SourceKind, repo: str | None, revision: str | None) -> str:
    if source != "auto":
        return source
    if repo is not None or revision is not None:
        return "git"
    kinds = [s.kind for s in pin.sources]
    return next((kind for kind in ("sdist", "wheel", "git") if kind in kinds), "git")


def _source(pin: Pin, kind: str) -> Source:
    of_kind = [source for source in pin.sources if source.kind == kind]
    if len(of_kind) > 1:
        # All wheels of a release hold the same Python; the one that is a base here is fetched anyway.
        bases = {base.filename for base in pin.bases if not pins.misfits(base)}
        of_kind.sort(key=lambda source: source.filename not in bases)
    if of_kind:
        return of_kind[0]
    have = ", ".join(sorted({s.kind for s in pin.sources})) or "none"
    raise UnknownRevisionError(
        f"{pin.engine} {pin.rev} has no pinned {kind}.",
        why=f"the pin names these sources: {have}",
        next="choose another --source, or let --source auto choose",
    )


def _from_archive(pin: Pin, bare: git.Repo, source: Source, progress: Progress | None) -> Checkout:
    ref = archive_ref(source)
    kept = _kept(bare, ref)
    if kept is None:
        from dspatch.index import download

        path = download(
            source.project, source.filename, source.sha256, size=source.size, progress=progress
        )
        members = archive.sdist_members if source.kind == "sdist" else archive.wheel_members
        message = f"{pin.engine} {pin.rev} ({source.kind})"
        _import(bare, ref, message, lambda: members(path))
        kept = _kept(bare, ref)
    return _found(pin, bare, kept, source.kind, f"{source.filename} sha256:{source.sha256}")


def _import(
    bare: git.Repo, ref: str, message: str, members: Callable[[], Iterator[archive.Member]]
) -> None:
    """Write an archive's files as one commit; a ref names it only when all of them are there."""
    changes = (
        git.Change(
            path=member.path,
            data=member.link.encode() if member.link is not None else member.data,
            mode=git.LINK if member.link is not None else git.FILE_MODES[member.mode],
        )
        for member in members()
    )
    staging = ref.replace("refs/pristine/", "refs/importing/")
    commit = bare.write_commits(staging, None, [git.NewCommit(message=message, changes=changes)])
    bare.set_refs({ref: commit[-1], staging: None})


def _from_git(pin: Pin, bare: git.Repo, repo: str | None, revision: str) -> Checkout:
    url = _location(repo) if repo else pin.repository
    ref = git_ref(url, revision)
    fixed = re.fullmatch(r"[0-9a-f]{40}", revision) is not None
    if not (fixed and _kept(bare, ref)):
        try:
            _fetch(bare, url, revision, ref, pin.engine)
        except GitError as error:
            _explain(bare, ref, url, revision, error)
    return _found(pin, bare, _kept(bare, ref), "git", f"{url} {revision}")


def _fetch(bare: git.Repo, url: str, revision: str, ref: str, engine: str) -> None:
    """Fetch a revision from where it is, or from the mirror that `DSPATCH_MIRROR` names."""
    folder = paths.mirror()
    if folder is None or Path(url).exists():
        bare.fetch(url, revision, ref)
        return
    try:
        bare.fetch(str(folder / "git" / f"{engine}.git"), ref, ref)
    except GitError as error:
        raise MirrorError(
            f"The mirror {folder} has not `{revision}` of {url}.",
            why=error.why.partition("\n")[0],
            next=f"where there is a network, apply it and run: dspatch pin mirror {folder} --jobs",
        ) from None


def _check_commit(pin: Pin, found: Checkout) -> None:
    """A tag may move, and a fork may have one of the same name; the pin's commit does not."""
    if pin.commit and not found.commit.startswith(pin.commit):
        raise HashMismatchError(
            f"{pin.tag} of {found.origin.split(' ')[0]} is not the commit that the pin names.",
            why=f"the pin has {pin.commit}, the tag is at {found.commit[: len(pin.commit)]}",
            next=f"if that revision is meant, give it with the release it is based on: --base {pin.tag}",
        )


def _explain(bare: git.Repo, ref: str, url: str, revision: str, error: GitError) -> None:
    """A failed fetch: fine when the revision was fetched before, otherwise an error that says which."""
    missing = re.search(r"couldn't find remote ref|not our ref|no such remote ref", error.why, re.I)
    if missing:
        raise UnknownRevisionError(
            f"{url} has no commit, tag or branch `{revision}`.",
            why=error.why,
            next="check the name with `git ls-remote`; commits are named by all 40 digits",
        ) from None
    if _kept(bare, ref) is None:
        raise OfflineError(
            f"`{revision}` of {url} could not be fetched, and the cache does not hold it.",
            why=error.why,
            next="use --source sdist, or --repo with a local clone",
        ) from None


def _location(repo: str) -> str:
    path = Path(repo).expanduser()
    return str(path.resolve()) if path.exists() else repo


def _ref_part(revision: str) -> str:
    return re.sub(r"[^A-Za-z0-9_/-]|//+|/$|^/", "-", revision)


def _kept(bare: git.Repo, ref: str) -> tuple[str, str] | None:
    """Commit and tree of a pristine ref, when the cache holds them."""
    commit, tree = bare.resolve_all(f"{ref}^{{commit}}", f"{ref}^{{tree}}")
    return (commit, tree) if commit and tree else None


def _found(
    pin: Pin, bare: git.Repo, kept: tuple[str, str] | None, kind: str, origin: str
) -> Checkout:
    if kept is None:
        raise GitError(
            f"the cache lost the pristine tree of {pin.engine} {pin.rev}.",
            next=f"remove {bare.path} and run the command again",
        )
    commit, tree = kept
    return Checkout(
        engine=pin.engine,
        rev=pin.rev,
        source=kind,
        origin=origin,
        repo=bare,
        commit=commit,
        tree=tree,
    )
