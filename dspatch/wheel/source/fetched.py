"""Get the sources of other projects for a build: from clones or by git, held to their hashes, into a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dspatch import paths
from dspatch.checkout import cache_of
from dspatch.engines import Progress, silent
from dspatch.errors import GitError, HashMismatchError, SourceBuildError
from dspatch.files import write_if_changed
from dspatch.git import Entry, Repo
from dspatch.wheel.source import sources, thirdparty
from dspatch.wheel.source.declared import Declared
from dspatch.wheel.source.thirdparty import Project

CACHE = "third-party"


@dataclass(frozen=True, kw_only=True)
class Handed:
    """A project whose files lie in a folder for CMake to take."""

    declared: Declared
    project: Project
    folder: Path


def put(
    wanted: Iterable[tuple[Declared, Project]], folder: Path, clones: Path | None, tell: Progress
) -> tuple[Handed, ...]:
    """Put the files of projects into folders of their own, each verified by commit and hash.

    `clones` is a folder with a clone of each, by its name; without one, git fetches them once into
    the cache. Raises `HashMismatchError`, or `SourceBuildError` where one cannot be had.
    """
    every, done = list(wanted), []
    _gather([project for _, project in every], clones, tell)
    for declared, project in every:
        tell(f"sources of {project.name} {project.tag}")
        place = folder / declared.name
        _put(project, place, clones)
        done.append(Handed(declared=declared, project=project, folder=place))
    return tuple(done)


def toolchain(handed: Sequence[Handed], path: Path, before: str | None) -> Path:
    """A CMake toolchain file that hands folders over, after the user's own where there is one.

    CMake reads it from its environment (CMAKE_TOOLCHAIN_FILE), whoever calls CMake; what the command
    line says wins.
    """
    lines = [f'include("{before}")'] if before else []
    lines += [f'set({one.declared.variable} "{one.folder}" CACHE PATH "")' for one in handed]
    write_if_changed(path, ("\n".join(lines) + "\n").encode())
    return path


def digest(entries: Mapping[str, Entry], read: Callable[[str], bytes]) -> str:
    """sha256 over mode, path and sha256 of every file, in the order of their paths."""
    total = hashlib.sha256()
    for path in sorted(entries):
        entry = entries[path]
        total.update(f"{entry.mode} {path}\0".encode("utf-8", "surrogateescape"))
        total.update(hashlib.sha256(read(entry.blob)).digest())
    return total.hexdigest()


def _put(project: Project, place: Path, clones: Path | None) -> None:
    with _repo(project, clones) as repo, repo.reading() as read:
        every = repo.entries(project.commit)
        entries = project.wanted(every)
        found = digest(entries, read)
        if found != project.sha256:
            raise HashMismatchError(
                f"The files of {project.name} {project.tag} are not the pinned ones.",
                why=f"expected {project.sha256}, found {found} in {repo.path}",
                next="take another clone; if the pin is wrong, mend thirdparty.toml",
            )
        sources.put(place, entries, read)
    for path, name in project.submodules.items():
        _put(_submodule(project, every, path, name), place / path, clones)


def _submodule(project: Project, entries: Mapping[str, Entry], path: str, name: str) -> Project:
    commit = entries[path].blob if path in entries else "none"
    found = thirdparty.submodule(name, commit)
    if found is None:
        raise SourceBuildError(
            f"{project.name} {project.tag} has {name} at {commit}, which dspatch does not know.",
            next=f"tell it in {thirdparty.own_projects()}",
        )
    return found


@contextmanager
def _repo(project: Project, clones: Path | None) -> Iterator[Repo]:
    """A repository that holds the commit: a clone that is here, or the cache."""
    local = _clone(project, clones)
    if local is not None:
        yield local
        return
    _gather([project], None, silent)
    with cache_of(CACHE) as bare:
        yield bare


def _gather(projects: Sequence[Project], clones: Path | None, tell: Progress) -> None:
    """Fetch what neither clones nor the cache have; all that cannot be had is told at once."""
    wanted = [project for project in projects if _clone(project, clones) is None]
    if not wanted:
        return
    failed: list[tuple[Project, GitError]] = []
    with cache_of(CACHE) as bare:
        for project in wanted:
            if bare.resolve(f"{project.commit}^{{commit}}") is None:
                tell(f"fetching {project.name} {project.tag}")
                failed += _fetched(bare, project)
    if failed:
        raise _unfetched(failed)


def _clone(project: Project, clones: Path | None) -> Repo | None:
    if clones is None:
        return None
    for place in (clones / project.name, clones / f"{project.name}.git"):
        if place.is_dir():
            repo = Repo(place)
            if repo.resolve(f"{project.commit}^{{commit}}") is None:
                raise SourceBuildError(
                    f"{place} has not {project.name} {project.tag}.",
                    why=f"there is no commit {project.commit} in it",
                    next=f"fetch it there: git fetch {project.repository} {project.commit}",
                )
            return repo
    return None


def _fetched(bare: Repo, project: Project) -> list[tuple[Project, GitError]]:
    """Fetch one commit; why not, where it cannot be had."""
    try:
        if (mirror := paths.mirror()) is not None:
            raise GitError("a mirror holds none", why=f"DSPATCH_MIRROR names {mirror}")
        ref = f"refs/third-party/{project.name}/{project.commit}"
        bare.fetch(project.repository, project.commit, ref)
    except GitError as error:
        return [(project, error)]
    return []


def _unfetched(failed: Sequence[tuple[Project, GitError]]) -> SourceBuildError:
    names = ", ".join(f"{project.name} {project.tag}" for project, _ in failed)
    rows = [f"{one.repository} {error.why.strip().partition(chr(10))[0]}" for one, error in failed]
    return SourceBuildError(
        f"{names} could not be fetched, and the cache does not hold what is missing.",
        why="\n        ".join(rows),
        next="clone each where there is a network, put the clones into one folder under these names, and"
        " name the folder with --clones",
    )
