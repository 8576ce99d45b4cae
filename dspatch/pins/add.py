"""`pin add`: find a release on the indexes, verify its files, compare them, write its pin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from dspatch import index
from dspatch.errors import PinError
from dspatch.fetch import Progress
from dspatch.files import sha256
from dspatch.index import IndexFile
from dspatch.pins import examine, lookup, release, store, usable
from dspatch.pins.engines import Engine, engine
from dspatch.pins.release import Release
from dspatch.pins.types import Accepted, Base, Bound, Build, Pin, Setting, Source, Target
from dspatch.pins.usable import fits, misfits, this_machine
from dspatch.wheel import requirements
from dspatch.wheel.plan import Difference


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to pin: a release, its targets (all it has, when empty), and for which machines.

    `machines` are names such as `aarch64`; none means this machine and this Python. `accept` maps a
    path or glob to the reason why a base wheel may differ from the source there. With `torch`, a
    version, targets without a base wheel are to be compiled with it, and those of `from_source` whether
    or not there is one, with `settings` of upstream's build. `bounds` narrow what wheels ask for,
    `overrides` replace what base wheels ask for and cannot have; each goes to the wheels that ask.
    `progress` gives, for a file's name, what is to be told about its download.
    """

    engine: str
    rev: str
    targets: tuple[Target, ...] = ()
    machines: tuple[str, ...] = ()
    accept: Mapping[str, str] = field(default_factory=dict)
    torch: str | None = None
    from_source: tuple[Target, ...] = ()
    settings: tuple[Setting, ...] = ()
    bounds: tuple[Bound, ...] = ()
    overrides: tuple[Bound, ...] = ()
    progress: Callable[[str], Progress | None] = lambda filename: None


@dataclass(frozen=True, kw_only=True)
class Added:
    """The pin, its file, the accepted differences by base wheel, and what is worth knowing."""

    pin: Pin
    path: Path
    differences: Mapping[str, tuple[Difference, ...]]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The result as the object that `--json` prints."""
        return {**asdict(self), "path": str(self.path)}


def add(request: Request, file: Path | None = None) -> Added:
    """Write the pin of a release into `file`, by default among the user's own pins.

    Raises `UnknownEngineError`, `UnknownRevisionError`, `IncompatibleBaseError` when no base wheel
    is for these machines, `BaseDiffersError` for differences that nobody accepted, `PinError`, and
    the errors of `index.download`; then nothing is written.
    """
    facts = engine(request.engine)
    path = file or lookup.user_file(facts.name)
    others = store.read(path, facts.name)
    found = release.find(facts, request.rev)
    builds = _builds(request, facts)
    compiled = [build.target for build in builds]
    published = release.base_wheels(
        found, request.targets, request.machines, this_machine(), compiled=compiled
    )
    listed = [(target, wheel) for target, wheel in published if target not in request.from_source]
    origin = _fetch(request, facts.sdist, found.origin)
    source = examine.source_tree(facts, origin)
    accept = [Accepted(path=glob, reason=reason) for glob, reason in request.accept.items()]
    bases: list[Base] = []
    differences: dict[str, tuple[Difference, ...]] = {}
    asked: set[Bound] = set()
    for target, wheel in listed:
        project = facts.bases[target]
        local = _fetch(request, project, wheel)
        base, differing = examine.base_wheel(facts, source, target, project, local, accept)
        bases.append(_with_requirements(base, local, request))
        asked |= {*bases[-1].bounds, *bases[-1].overrides}
        differences[wheel.filename] = differing
    _refuse_idle(request, asked, compiled=bool(builds))
    based = {base.target for base in bases}
    builds = [build for build in builds if build.target not in based]
    _refuse_uncompiled(request, [build.target for build in builds])
    pin = Pin(
        engine=facts.name,
        rev=f"v{found.version}",
        commit=source.commit,
        requires_python=source.requires_python,
        sources=tuple(_sources(found, source.commit, origin, bases)),
        bases=tuple(bases),
        builds=tuple(builds),
    )
    store.write(path, [*(each for each in others if not lookup.same(each.rev, pin.rev)), pin])
    files = [found.origin, *(wheel for _, wheel in listed)]
    notes = tuple(_notes(request, found, files, pin))
    return Added(pin=pin, path=path, differences=differences, notes=notes)


def _with_requirements(base: Base, wheel: Path, request: Request) -> Base:
    """The base with those bounds and overrides that are about what its wheel asks for."""
    stated = requirements.stated(wheel)
    bounds, overrides = (
        tuple(each for each in some if requirements.asks_for(stated, each.requirement))
        for some in (request.bounds, request.overrides)
    )
    return replace(base, bounds=bounds, overrides=overrides)


def _refuse_idle(request: Request, used: Collection[Bound], *, compiled: bool) -> None:
    """What a wheel that is still to be compiled will ask for, nobody knows yet."""
    given = [*(() if compiled else request.bounds), *request.overrides]
    if idle := [each.requirement for each in given if each not in used]:
        raise PinError(
            f"No base wheel asks for what {', '.join(idle)} is about.",
            next="leave it out, or name the project as the wheel does",
        )


def _refuse_uncompiled(request: Request, compiled: Collection[Target]) -> None:
    """Raise `PinError` for what was asked of compiling where nothing is compiled."""
    if lost := [target for target in request.from_source if target not in compiled]:
        raise PinError(
            f"{request.engine} is not compiled for {', '.join(lost)}.",
            why="no such target was asked for, or dspatch does not know how to compile it",
            next="leave --from-source out, or name the target",
        )
    if request.settings and not compiled:
        raise PinError(
            "Nothing is compiled that the settings could be for.",
            why="every target has a base wheel",
            next="name the target that is compiled all the same with --from-source",
        )


def _fetch(request: Request, project: str, file: IndexFile) -> Path:
    return index.download_listed(project, file, request.progress(file.filename))


def _sources(
    found: Release, commit: str | None, origin: Path, bases: Sequence[Base]
) -> Iterator[Source]:
    if commit:
        yield Source(kind="git", commit=commit)
    project = found.facts.sdist
    yield Source(
        kind="sdist" if found.has_sdist else "wheel",
        project=project,
        filename=origin.name,
        sha256=sha256(origin),
        size=origin.stat().st_size,
    )
    # Upstream's own wheel holds the same Python; one rebuilt by others does not.
    own = sorted(
        (base for base in bases if base.project == project), key=lambda b: bool(misfits(b))
    )
    built = own[0] if own else None
    if built and found.has_sdist:
        yield Source(
            kind="wheel",
            project=project,
            filename=built.filename,
            sha256=built.sha256,
            size=built.size,
        )


def _builds(request: Request, facts: Engine) -> list[Build]:
    """How the targets are compiled that have no base wheel: those that dspatch knows to compile."""
    if request.torch is None:
        if request.from_source or request.settings:
            raise PinError(
                "What is compiled needs the torch to compile it with.",
                next="name its version with --torch",
            )
        return []
    return [
        Build(
            target=target,
            torch=request.torch,
            bounds=request.bounds,
            settings=request.settings,
        )
        for target in request.targets or facts.targets
        if usable.compilable(facts.name, target)
    ]


def _notes(request: Request, found: Release, files: Sequence[IndexFile], pin: Pin) -> Iterator[str]:
    for target in () if request.targets else found.facts.targets:
        if target not in pin.targets:
            build = pin.build(target)
            what = f"compiled with torch {build.torch}" if build else "the pin has no such target"
            asked = target in request.from_source
            yield f"{target if asked else f'no base wheel for {target} on these machines'}: {what}"
    for file in files:
        if file.sha256 is None:
            yield f"{file.filename}: the index states no hash; the pin has the one of what came"
        if file.yanked:
            yield f"{file.filename}: yanked by its publisher"
    for base in pin.bases:
        yield f"{base.filename}: {'; '.join(misfits(base)) or 'runs on this machine'}"
    for torch in dict.fromkeys(base.torch for base in pin.bases if base.torch):
        yield _torch_note(torch)


def _torch_note(torch: str) -> str:
    """Whether an index has a torch that the requirement takes; local versions are not published."""
    wanted = Requirement(torch)
    public = Requirement(f"{wanted.name}{str(wanted.specifier).partition('+')[0]}")
    here = this_machine()
    names = [each.filename for each in index.listing(wanted.name).files]
    versions = [lookup.version_of(name) for name in names if fits(name, here)]
    if any(version in wanted.specifier for version in versions if version):
        return f"{torch}: an index has it for this machine"
    if any(version in public.specifier for version in versions if version):
        return f"{torch}: indexes have {public} instead, which an overlay asks for"
    return f"{torch}: no index has it for this machine and its Python"
