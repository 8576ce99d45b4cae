"""The releases of an engine that this machine may run without a GPU: one CPU wheel each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

from dspatch import index, pins
from dspatch.errors import BisectError, IncompatibleBaseError
from dspatch.index import IndexFile
from dspatch.pins import lookup, usable
from dspatch.pins.engines import Engine


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A release and its CPU wheel; `lacks` says why this machine does not take it, else it is empty."""

    version: str
    project: str
    wheel: IndexFile
    lacks: str = ""


def candidates(engine: str) -> tuple[Candidate, ...]:
    """Every final release with a CPU wheel, oldest first.

    Raises `BisectError` for an engine that has no project of CPU wheels, `OfflineError` or
    `DownloadError` when no index can be asked.
    """
    facts = pins.engine(engine)
    project = facts.bases.get("cpu")
    if project is None:
        raise BisectError(
            f"{engine} has no CPU wheels to run.",
            why="engines.toml names no base project for the target cpu",
            next="bisect an engine that has, such as vllm",
        )
    return read(index.files(project), project, facts)


def read(files: Iterable[IndexFile], project: str, facts: Engine) -> tuple[Candidate, ...]:
    """The releases of a listing: of each the wheel that fits this machine best, or any with why not."""
    found: dict[Version, list[IndexFile]] = {}
    for file in files:
        version = lookup.version_of(file.filename)
        if version is None or file.yanked or not file.filename.endswith(".whl"):
            continue
        if not Version(version).is_prerelease and _recent(facts, version):
            found.setdefault(Version(version), []).append(file)
    return tuple(_candidate(str(key), project, found[key]) for key in sorted(found))


def between(known: Sequence[Candidate], one: str | None, other: str | None) -> list[Candidate]:
    """The releases from one end to the other, whichever is older.

    One end alone goes with the newest release, or with the oldest where it is the newest itself;
    without any the whole listing. Raises `BisectError` for an end that is none of them.
    """
    ends = [_place(known, end) for end in (one, other) if end is not None] or [0]
    last = len(known) - 1
    if len(ends) == 1:
        ends.append(0 if ends[0] == last else last)
    return list(known[min(ends) : max(ends) + 1])


def _place(known: Sequence[Candidate], end: str) -> int:
    for place, each in enumerate(known):
        if lookup.same(end, each.version):
            return place
    raise BisectError(
        f"there is no CPU wheel of release {end}.",
        why=f"the index has {', '.join(each.version for each in known) or 'none'}",
        next="name one of these",
    )


def _recent(facts: Engine, version: str) -> bool:
    return facts.oldest is None or Version(version) >= Version(facts.oldest)


def _candidate(version: str, project: str, wheels: Sequence[IndexFile]) -> Candidate:
    here = usable.this_machine()
    names = {wheel.filename: wheel for wheel in wheels}
    fitting = [name for name in sorted(names) if usable.fits(name, here)]
    if fitting:
        best = min(fitting, key=lambda name: usable.rank(name, here))
        return Candidate(version=version, project=project, wheel=names[best])
    chosen = names[min(names)]
    return Candidate(version=version, project=project, wheel=chosen, lacks=_lacks(chosen))


def _lacks(wheel: IndexFile) -> str:
    from dspatch.wheel.compatible import check_tags

    try:
        check_tags(wheel.filename, wheel.requires_python, usable.this_machine())
    except IncompatibleBaseError as error:
        return error.why
    return f"{wheel.filename} does not fit this machine"
