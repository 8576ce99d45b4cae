"""What the indexes offer of one release: its source, and the base wheels of each target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.utils import parse_wheel_filename

from dspatch import index
from dspatch.errors import IncompatibleBaseError
from dspatch.index import IndexFile
from dspatch.pins import lookup, usable
from dspatch.pins.engines import Engine
from dspatch.pins.needs import machine_of
from dspatch.pins.types import Target
from dspatch.wheel.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release's version, its files by project, and `origin`: the file its source is read from."""

    facts: Engine
    version: str
    files: dict[str, tuple[IndexFile, ...]]
    origin: IndexFile

    @property
    def has_sdist(self) -> bool:
        """Whether the source is an sdist; otherwise it is a wheel that upstream built."""
        return not self.origin.filename.endswith(".whl")


def find(facts: Engine, rev: str) -> Release:
    """The files of a release on all indexes; raises as `pins.load` does when there are none."""
    files = {project: _of_version(project, rev) for project in facts.projects}
    upstream = files[facts.sdist]
    if not upstream:
        raise lookup.unknown(facts, rev)
    sdists = [file for file in upstream if not file.filename.endswith(".whl")]
    origin = (sdists or list(upstream))[0]
    version = lookup.version_of(origin.filename) or rev
    return Release(facts=facts, version=version, files=files, origin=origin)


def base_wheels(
    release: Release,
    targets: Sequence[Target],
    machines: Sequence[str],
    here: Machine,
    *,
    compiled: Sequence[Target] = (),
) -> list[tuple[Target, IndexFile]]:
    """The base wheels of each target for the named machines, or for this machine and Python.

    Raises `IncompatibleBaseError` when a target that was asked for, or every target, has none; of
    `compiled`, a target may have none.
    """
    found: list[tuple[Target, IndexFile]] = []
    for target in targets or release.facts.targets:
        fitting = [each for each in _wheels(release, target) if _fits(each, machines, here)]
        if targets and not fitting and target not in compiled:
            raise _none_fits(release, [target], machines)
        found += [(target, wheel) for wheel in fitting]
    if not found and not compiled:
        raise _none_fits(release, release.facts.targets, machines)
    return found


def _of_version(project: str, rev: str) -> tuple[IndexFile, ...]:
    found: dict[str, IndexFile] = {}
    for file in index.files(project):
        version = lookup.version_of(file.filename)
        if version is not None and lookup.same(version, rev):
            # The first index that has a name wins, as for pip, unless it states no hash.
            known = found.setdefault(file.filename, file)
            if known.sha256 is None and file.sha256:
                found[file.filename] = file
    return tuple(found.values())


def _wheels(release: Release, target: Target) -> Iterator[IndexFile]:
    project = release.facts.bases.get(target, "")
    for file in release.files.get(project, ()):
        if file.filename.endswith(".whl"):
            yield file


def _fits(wheel: IndexFile, machines: Sequence[str], here: Machine) -> bool:
    if not machines:
        return usable.fits(wheel.filename, here)
    tags = parse_wheel_filename(wheel.filename)[3]
    return any(machine_of(tag.platform) in machines for tag in tags if "linux" in tag.platform)


def _none_fits(
    release: Release, targets: Sequence[Target], machines: Sequence[str]
) -> IncompatibleBaseError:
    wheels = [each.filename for target in targets for each in _wheels(release, target)]
    return IncompatibleBaseError(
        f"{release.facts.name} {release.version} has no base wheel for {' or '.join(targets)} "
        f"that fits {' or '.join(machines) or 'this machine and its Python'}.",
        why=f"that release has {', '.join(wheels) or 'no wheel for it'}",
        next="use another Python, machine, target or revision",
    )
