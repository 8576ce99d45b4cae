"""`dspatch pin mirror`: everything that jobs need in one folder, for runs without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from filelock import FileLock, Timeout

from dspatch import checkout, git, index, paths, pins, receipt
from dspatch.checkout import SourceKind
from dspatch.console import Console
from dspatch.engines import environment, resolve
from dspatch.engines.resolve import Package
from dspatch.errors import LockedError, MirrorError
from dspatch.files import disk_full_explained, sha256
from dspatch.job import all_jobs
from dspatch.pins import Pin, store
from dspatch.pins import mirror as mirrors
from dspatch.pins.lookup import same, version_of
from dspatch.pins.mirror import File, Mirror
from dspatch.stages.request import pin_of, served
from dspatch.wheel import requirements

PARTIAL = ".partial"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A job to mirror for; `origin` names repository and revision where its source is not a pinned file."""

    engine: str
    rev: str
    target: str
    source: SourceKind = "auto"
    origin: str = ""

    @property
    def words(self) -> str:
        """The job in one line, from which `read` makes it again."""
        return " ".join([self.engine, self.rev, self.target, self.source, self.origin]).rstrip()

    @classmethod
    def read(cls, words: str) -> Wanted:
        """The job of a line."""
        engine, rev, target, source, *origin = words.split(" ", 4)
        kind = cast("SourceKind", source)
        return cls(engine=engine, rev=rev, target=target, source=kind, origin="".join(origin))


@dataclass(frozen=True, kw_only=True)
class Written:
    """A mirror on the disk, and the files that were new in it."""

    folder: Path
    mirror: Mirror
    added: tuple[str, ...]


def named(
    engine: str, revs: Sequence[str], targets: Sequence[str], variants: Sequence[str]
) -> list[Wanted]:
    """The jobs of some revisions and targets; raises the error of the first name that is unknown."""
    served(variants)
    return [
        Wanted(engine=engine, rev=pins.load(engine, rev).rev, target=target)
        for rev in revs
        for target in targets or ("cpu",)
    ]


def applied() -> list[Wanted]:
    """The jobs of the work folder that were applied."""
    return [_of_job(receipt.require(job, "apply")) for job in all_jobs()]


def known(folder: Path) -> list[Wanted]:
    """The jobs that a mirror was written for; raises `MirrorError` when there is none."""
    jobs = mirrors.read(folder).jobs
    if not jobs:
        raise MirrorError(
            f"{folder} names no job to mirror for.",
            next=f"dspatch pin mirror {folder} --engine vllm --rev v0.27.1, or --jobs for those applied",
        )
    return [Wanted.read(words) for words in jobs]


def run(folder: Path, jobs: Sequence[Wanted], console: Console, *, prove: bool = True) -> Written:
    """Write what the jobs need into a folder; files that are there and right are kept.

    With `prove`, also what conformance installs: the engines' environments and the oracle's. Raises
    `MirrorError`, or what `index.download` raises; what was fetched so far is kept.
    """
    _refuse_mirror_of_mirror()
    folder = folder.resolve()
    with _alone(folder):
        before = mirrors.read(folder)
        filled = replace(before, jobs=tuple(sorted({*before.jobs, *(job.words for job in jobs)})))
        for job in jobs:
            filled = _with_job(folder, filled, job, console)
            mirrors.write(folder, filled)
        for name, requirements in _environments(folder, jobs).items() if prove else ():
            filled = _with_environment(folder, filled, name, requirements, console)
            mirrors.write(folder, filled)
        with console.working("verifying the mirror"):
            mirrors.check(folder)
    added = tuple(sorted(filled.files.keys() - before.files.keys()))
    return Written(folder=folder, mirror=filled, added=added)


def _refuse_mirror_of_mirror() -> None:
    if (source := paths.mirror()) is not None:
        raise MirrorError(
            "A mirror is written from the indexes that pip is configured with.",
            why=f"DSPATCH_MIRROR names {source}, from which alone packages come",
            next="unset DSPATCH_MIRROR and run the command again",
        )


def _of_job(content: Mapping[str, Any]) -> Wanted:
    request, source = content["request"], content["checkout"]
    own = source["source"] == "git"
    return Wanted(
        engine=request["engine"],
        rev=pin_of(content).rev,
        target=request["target"],
        # A revision is compared with the release that it is based on.
        source="auto" if own else source["source"],
        origin=source["origin"] if own else "",
    )


def _with_job(folder: Path, mirror: Mirror, job: Wanted, console: Console) -> Mirror:
    pin = pins.load(job.engine, job.rev)
    for file in (checkout.source_of(pin, job.source), pins.base_for(pin, job.target)):
        package = Package(
            project=file.project,
            version=version_of(file.filename) or pin.version,
            filename=file.filename,
            sha256=file.sha256,
        )
        what = f"{job.engine} {job.rev} {job.target}"
        fetched = _file(folder, mirror, package, console, size=file.size)
        mirror = mirror.with_file(replace(fetched, needed_by=(what,)))
    _mirror_pin(folder, pin)
    if job.origin:
        url, _, revision = job.origin.rpartition(" ")
        _mirror_revision(folder, job.engine, checkout.git_ref(url, revision))
    return mirror


def _with_environment(
    folder: Path, mirror: Mirror, name: str, requirements: Sequence[str], console: Console
) -> Mirror:
    names = mirror.environments.get(name, ())
    if names and all(mirrors.holds(folder, mirror.files[each]) for each in names):
        console.note(f"{name}: all there ({len(names)} files)")
        return mirror
    with console.working(f"asking pip what {name} installs"):
        packages = resolve.resolve(requirements)
    files = [_file(folder, mirror, package, console) for package in packages]
    for file in files:
        mirror = mirror.with_file(replace(file, needed_by=(name,)))
    console.note(f"{name}: {len(files)} files")
    environments = {**mirror.environments, name: tuple(sorted(file.filename for file in files))}
    return replace(mirror, environments=environments)


def _environments(folder: Path, jobs: Sequence[Wanted]) -> dict[str, Sequence[str]]:
    """The environments that conformance makes, by name, with what each is asked to install."""
    from dspatch.conformance import oracle

    found: dict[str, Sequence[str]] = {}
    for job in jobs:
        base = pins.base_for(pins.load(job.engine, job.rev), job.target)
        path = folder / base.filename
        needs = environment.needs(path, requirements.of_base(path, base))
        found[environment.locate(f"{job.engine}-needs", needs).path.name] = needs
    needs = list(oracle.requirements())
    return {**found, environment.locate("oracle", needs).path.name: needs}


def _file(
    folder: Path, mirror: Mirror, package: Package, console: Console, size: int | None = None
) -> File:
    """A package in the mirror: there already, from the cache, or from an index; an sdist is built."""
    if not package.is_wheel and size is None:
        return _built(folder, mirror, package, console)
    place = folder / package.filename
    if not index.holds(place, package.sha256):
        with console.progress(f"fetching {package.filename}") as progress:
            fetched = _cached(package) or index.download(
                package.project,
                package.filename,
                package.sha256,
                folder / PARTIAL,
                size=size,
                progress=progress,
            )
            _take(fetched, place)
    return _described(place, package, package.sha256)


def _built(folder: Path, mirror: Mirror, package: Package, console: Console) -> File:
    """The wheel of a package that has none: a build is not the same bytes twice, so one is kept."""
    for known in mirror.files.values():
        if known.built_from == package.sha256 and mirrors.holds(folder, known):
            return known
    with console.working(f"building {package.filename}"), _scratch(folder) as scratch:
        wheel = resolve.build(package, scratch)
        _take(wheel, folder / wheel.name)
    place = folder / wheel.name
    return replace(_described(place, package, sha256(place)), built_from=package.sha256)


def _described(place: Path, package: Package, digest: str) -> File:
    return File(
        filename=place.name,
        sha256=digest,
        size=place.stat().st_size,
        project=package.project,
        version=package.version,
    )


def _cached(package: Package) -> Path | None:
    place = paths.cache() / "downloads" / package.sha256 / package.filename
    return place if index.holds(place, package.sha256) else None


def _take(source: Path, place: Path) -> None:
    """Put a file into its place whole: moved within the mirror, otherwise linked or copied."""
    if source.is_relative_to(place.parent):
        source.replace(place)
        return
    with disk_full_explained(place.parent), _scratch(place.parent) as scratch:
        near = scratch / place.name
        try:
            os.link(source, near)
        except OSError:
            shutil.copyfile(source, near)
        near.replace(place)


def _mirror_pin(folder: Path, pin: Pin) -> None:
    """Keep the pin too: one of the user's own does not ship with dspatch."""
    place = folder / mirrors.PINS / f"{pin.engine}.toml"
    others = [each for each in store.read(place, pin.engine) if not same(each.rev, pin.rev)]
    store.write(place, [*others, pin])


def _mirror_revision(folder: Path, engine: str, ref: str) -> None:
    place = git.init_bare(folder / mirrors.GIT / f"{engine}.git")
    with checkout.cache_of(engine) as cache:
        place.fetch(str(cache.path), ref, ref)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=folder / PARTIAL) as scratch:
        yield Path(scratch)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from writing the mirror; what is half fetched stays for the next run."""
    partial = folder / PARTIAL
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with FileLock(partial / "lock", timeout=0):
            yield
    except Timeout:
        raise LockedError(
            f"another dspatch process is writing the mirror {folder}.",
            next="wait for it to end and run the command again",
        ) from None
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise MirrorError(
            f"The mirror {folder} cannot be written.",
            why=str(error),
            next="name a folder that you may write",
        ) from None
    shutil.rmtree(partial, ignore_errors=True)
