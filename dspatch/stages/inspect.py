"""`dspatch patch why` and `range-diff`: which patch wrote a line, and how a series differs between revisions."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import receipt
from dspatch.carry import rangediff, why
from dspatch.carry.rangediff import Pair
from dspatch.carry.why import History, Origin
from dspatch.console import Console
from dspatch.git import Repo
from dspatch.job import Job
from dspatch.patchfile import Patch
from dspatch.series import Series, layered
from dspatch.stages.apply import compute, computed, pristine
from dspatch.stages.request import Request


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Where the lines of a file come from; `line` is the one that was asked for, with its text."""

    engine: str
    rev: str
    path: str
    origins: tuple[Origin, ...]
    took_out: tuple[str, ...]
    patches: dict[str, Patch]
    line: int | None
    text: str


def explain(place: str, where: Job | Request, console: Console) -> Explained:
    """Say where a file's lines come from, or one line: `place` is FILE or FILE:LINE.

    where: an applied job, whose work tree is looked at with the edits in it, or a request, whose
    tree is computed. Raises `DspatchError` when there is no such file or line.
    """
    wanted, line = _place(place)
    look = _in_job(where, wanted) if isinstance(where, Job) else _computed(where, wanted, console)
    if look.text is None:
        raise why.no_such_file(look.path, look.paths, f"{look.engine} {look.rev}")
    origins = _origins(look)
    if line is not None:
        origins = (why.of_line(origins, line, look.path),)
    return Explained(
        engine=look.engine,
        rev=look.rev,
        path=look.path,
        origins=origins,
        took_out=why.took_out(look.history, look.path, origins) if line is None else (),
        patches=_known(look.series, look.history),
        line=line,
        text=_line(look.text, line),
    )


@dataclass(frozen=True, kw_only=True)
class _Look:
    """One file of one tree, the paths that the tree's head has, and the series as it is now."""

    series: Series
    engine: str
    rev: str
    path: str
    history: History
    text: bytes | None
    paths: tuple[str, ...]


def _in_job(job: Job, path: str) -> _Look:
    content = receipt.require(job, "apply")
    history = History(
        repo=Repo(job.tree),
        base=content["checkout"]["commit"],
        head=None,
        patches={patch["commit"]: patch["name"] for patch in content["patches"]},
    )
    inside = _inside(path, job.tree)
    return _Look(
        series=layered(job.id.engine),
        engine=job.id.engine,
        rev=job.id.rev,
        path=inside,
        history=history,
        text=_read(job.tree / inside),
        paths=tuple(history.repo.entries("HEAD")),
    )


def _computed(request: Request, path: str, console: Console) -> _Look:
    resolved, found = pristine(request, console)
    series = layered(request.engine)
    tree = computed(series, resolved, found, guarded=False)
    repo = tree.checkout.repo
    entries = repo.entries(tree.commit)
    return _Look(
        series=series,
        engine=request.engine,
        rev=request.rev,
        path=path,
        history=History(
            repo=repo,
            base=tree.checkout.commit,
            head=tree.commit,
            patches={patch.commit: patch.name for patch in tree.patches},
        ),
        text=repo.blob(entries[path].blob) if path in entries else None,
        paths=tuple(entries),
    )


def _origins(look: _Look) -> tuple[Origin, ...]:
    if not look.text:
        return ()
    if look.path not in look.paths:
        return why.all_edited(look.text)
    return why.origins(look.history, look.path)


def _place(place: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.+):(\d+)", place)
    return (found[1], int(found[2])) if found else (place, None)


def _inside(path: str, tree: Path) -> str:
    """A path in the engine's tree, also when it was given as a path on the disk."""
    absolute = Path(path).absolute()
    if absolute.is_relative_to(tree):
        return absolute.relative_to(tree).as_posix()
    return path


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _line(text: bytes, line: int | None) -> str:
    return "" if line is None else text.splitlines()[line - 1].decode("utf-8", "replace")


def _known(series: Series, history: History) -> dict[str, Patch]:
    """The patches of a history that the series still has."""
    applied = set(history.patches.values())
    return {patch.name: patch for patch in series.patches if patch.name in applied}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A series on two revisions."""

    engine: str
    revisions: tuple[str, str]
    pairs: tuple[Pair, ...]


def compare(first: Request, rev: str, console: Console) -> Compared:
    """The series on the revision of a request and on another one, patch by patch."""
    resolved, found = pristine(first, console)
    series = layered(first.engine)
    old = computed(series, resolved, found, guarded=False)
    new = compute(replace(first, rev=rev), console, patches=series, guarded=False)[1]
    return Compared(
        engine=first.engine, revisions=(first.rev, rev), pairs=rangediff.pairs(old, new)
    )
