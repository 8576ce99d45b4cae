"""`dspatch build-wheel`: the wheel of a job's patched tree, kept by the hash of all that goes into it."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from dspatch import pins, receipt, worktree
from dspatch.checkout import cache_of, checkout
from dspatch.console import Console
from dspatch.errors import EditedTreeError, WheelError
from dspatch.files import sha256
from dspatch.git import EPOCH, EXECUTABLE, LINK, Entry, Repo
from dspatch.index import download
from dspatch.job import Job
from dspatch.pins import Accepted, Base, Bound, Engine, Pin, Target
from dspatch.series import layered
from dspatch.stages import compiling, extending
from dspatch.stages.compiling import How, Prepared
from dspatch.stages.extending import Extensions
from dspatch.stages.request import pin_of
from dspatch.wheel import requirements
from dspatch.wheel.names import overlay_version
from dspatch.wheel.overlay import build_overlay
from dspatch.wheel.plan import Ancestor, OverlayPlan, PatchRecord

# Raise when the same inputs would give other bytes than before.
FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Built:
    """A job's wheel; `cached` says that it was there already."""

    job: Job
    path: Path
    sha256: str
    version: str
    base: Base
    cached: bool
    receipt: Mapping[str, Any]


class TreeBytes(Mapping[str, bytes]):
    """The files of a git tree by path; bytes are read when they are asked for."""

    def __init__(self, entries: Mapping[str, Entry], read: Callable[[str], bytes]) -> None:
        self._entries = entries
        self._read = read

    def __getitem__(self, path: str) -> bytes:
        return self._read(self._entries[path].blob)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def usual(job: Job) -> How | None:
    """How a job's wheel is built when nobody says. Raises `NoJobError` before `apply`."""
    return compiling.usual(pin_of(receipt.require(job, "apply")), job.id.target)


def run(
    job: Job, console: Console, how: How | None = None, *, without_extensions: bool = False
) -> Built:
    """Build the wheel of a job: on its base wheel, or with `how` compiled here.

    The extensions that its patches declare are compiled into either. Raises `NoJobError` before
    `apply`, `EditedTreeError` after edits, and what `extending` raises.
    """
    content = receipt.require(job, "apply")
    _refuse_edits(job)
    pin = pin_of(content)
    with job.locked():
        own = extending.declared(job, content, left_out=without_extensions)
        if how is not None:
            prepared = compiling.prepare(job, content, pin, how, console)
            return _from_source(job, content, pin, prepared, own, console)
        base = pins.base_for(pin, job.id.target)
        accepted = [[a.path, a.reason, a.drop] for a in base.accepted]
        digest = _digest(content, [base.sha256, accepted, *_asked(base), *own.inputs])
        kept = _kept(job, digest)
        if kept is not None:
            return _noted(kept, console)
        base_path = fetched(base, console)
        with console.working(f"building the overlay on {base.filename}"):
            needs = requirements.of_base(base_path, base)
            made = _Base(pin=pin, base=base, path=base_path, own=own, requirements=needs)
            return _build(job, content, made, digest, console)


def _asked(base: Base) -> list[object]:
    """What the pin makes of a base wheel's requirements, as far as the wheel's bytes depend on it."""
    told = [[each.requirement for each in some] for some in (base.bounds, base.overrides)]
    return [told] if any(told) else []


def _from_source(
    job: Job,
    content: Mapping[str, Any],
    pin: Pin,
    prepared: Prepared,
    own: Extensions,
    console: Console,
) -> Built:
    digest = _digest(content, [*prepared.inputs, *own.inputs])
    kept = _kept(job, digest)
    # The wheel is held against what was compiled, so both are there or both are made.
    if (
        kept is not None
        and compiling.compiled_wheel(job, prepared.told, kept.base.filename).is_file()
    ):
        return _noted(kept, console)
    with cache_of(job.id.engine) as repo:
        changed = repo.changed_paths(_release_tree(content, pin), content["patched"]["tree"])
    base, path = compiling.build(prepared, content, changed, console, epoch=epoch())
    needs = compiling.requirements(prepared, path)
    made = _Base(pin=pin, base=base, path=path, own=own, compiled=prepared.told, requirements=needs)
    return _build(job, content, made, digest, console)


@dataclass(frozen=True, kw_only=True)
class _Base:
    """The wheel that an overlay starts from; `compiled` tells of one that was built here, `own` of extensions."""

    pin: Pin
    base: Base
    path: Path
    own: Extensions
    compiled: Mapping[str, object] | None = None
    requirements: Mapping[str, str] = field(default_factory=dict)


def base_of(built: Built, console: Console) -> Path:
    """The wheel that a job's wheel was made from; raises what `download` raises, or that it is gone."""
    told = built.receipt.get("compiled")
    if told is not None:
        return compiling.kept(built.job, told, built.base.filename)
    return fetched(built.base, console)


def fetched(base: Base, console: Console) -> Path:
    """A base wheel, from the cache or from an index; raises what `download` raises."""
    with console.progress(f"fetching {base.filename}") as progress:
        return download(base.project, base.filename, base.sha256, size=base.size, progress=progress)


def built_of(job: Job, content: Mapping[str, Any]) -> Built:
    """The wheel that a receipt tells of."""
    return _built(job, job.dist / str(content["wheel"]["path"]), content, cached=True)


def _refuse_edits(job: Job) -> None:
    edited = worktree.edits(job.tree) if worktree.head(job.tree) else ["the tree is gone"]
    if edited:
        raise EditedTreeError(
            f"{job.tree} is not as `dspatch apply` left it.",
            why="\n        ".join(edited[:8]),
            next="a wheel holds only what its receipt names: save the edits as a patch, or run"
            " `dspatch apply --discard-edits`",
        )


def _digest(content: Mapping[str, Any], base: Sequence[object]) -> str:
    """Everything that the wheel's bytes depend on, as one hash; `base` is all of its base wheel."""
    inputs = [
        FORMAT,
        content["checkout"]["tree"],
        content["patched"]["tree"],
        [[p["name"], p["sha256"]] for p in content["patches"]],
        *base,
        epoch(),
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def epoch() -> int:
    """SOURCE_DATE_EPOCH, or the date that every tree of dspatch has; seconds."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))


def _kept(job: Job, digest: str) -> Built | None:
    found = receipt.read(job, "build-wheel")
    if found is None or found.get("inputs") != digest:
        return None
    path = job.dist / str(found["wheel"]["path"])
    if not path.is_file() or sha256(path) != found["wheel"]["sha256"]:
        return None
    return _built(job, path, found, cached=True)


def _noted(kept: Built, console: Console) -> Built:
    console.note(f"wheel: {kept.path.name} is up to date")
    return kept


def _build(
    job: Job, content: Mapping[str, Any], made: _Base, digest: str, console: Console
) -> Built:
    pin, base, base_path = made.pin, made.base, made.path
    engine = pins.engine(pin.engine)
    release = _release_tree(content, pin)
    with cache_of(job.id.engine) as repo, repo.reading() as read:
        patched = repo.entries(content["patched"]["tree"])
        pristine = repo.entries(release)
        changed = repo.changed_paths(release, content["patched"]["tree"])
        _refuse_links(engine, patched, changed)
        plan = OverlayPlan(
            base=base_path,
            source=TreeBytes(_comparable(content, pin, base_path, pristine), read),
            changes={
                path: read(patched[path].blob) if path in patched else None
                for path in changed
                # An sdist holds files of its build that git does not.
                if path in patched or _is_own_source(engine, path)
            },
            name=engine.package,
            version=overlay_version(
                str(parse_wheel_filename(base.filename)[1]), _stated_target(made), digest
            ),
            accepted=base.accepted,
            patches=(*_revision(content, repo, release), *_records(job, content, repo)),
            ancestors=_ancestors(pin, content),
            version_file=_version_file(engine, base_path),
            extensions=extending.objects(
                made.own, patched, read, base_path.name, console, base.glibc
            ),
            extension_sources=made.own.sources(changed),
            executable=_new_modes(pristine, patched, changed),
            requirements=made.requirements,
            compiled=made.compiled is not None,
            epoch=epoch(),
        )
        overlay = build_overlay(plan, job.dist)
    written = receipt.write(
        job,
        "build-wheel",
        {
            "inputs": digest,
            "base": asdict(base),
            **({"compiled": made.compiled} if made.compiled else {}),
            **made.own.told,
            "patched": content["patched"],
            "wheel": overlay.as_dict(),
        },
    )
    return _built(job, overlay.path, written, cached=False)


def _stated_target(made: _Base) -> Target:
    """The target that the wheel's version names: none where it was built for no device."""
    device = (made.compiled or {}).get("device", made.base.target)
    return "cpu" if device == "cpu" else "cuda"


def _version_file(engine: Engine, base: Path) -> str:
    """The module that states a wheel's version: what the build writes, or the source's own before there was one."""
    with zipfile.ZipFile(base) as archive:
        names = archive.namelist()
    own = (engine.version_file, f"{engine.package}/version.py")
    return next((path for path in own if path in names), f"{engine.package}/__init__.py")


def _refuse_links(engine: Engine, patched: Mapping[str, Entry], changed: Iterable[str]) -> None:
    """A wheel holds files only; a link's target would become a file's text."""
    for path in changed:
        if path in patched and patched[path].mode == LINK and _is_own_source(engine, path):
            raise WheelError(
                f"{path} is a symbolic link in the patched tree.",
                why="a wheel holds no links",
                next="let the patch add a file that imports or holds what the link points to",
            )


def _new_modes(
    pristine: Mapping[str, Entry], patched: Mapping[str, Entry], changed: Iterable[str]
) -> dict[str, bool]:
    """Whether files are executable, for those whose mode the series changed, or that it added."""
    return {
        path: patched[path].mode == EXECUTABLE
        for path in changed
        if path in patched and (path not in pristine or pristine[path].mode != patched[path].mode)
    }


def _release_tree(content: Mapping[str, Any], pin: Pin) -> str:
    """The tree that the base wheel was built from, as far as it can be known."""
    own: str = content["checkout"]["tree"]
    return own if content["request"]["base"] is None else checkout(pin).tree


def _comparable(
    content: Mapping[str, Any], pin: Pin, base: Path, entries: dict[str, Entry]
) -> dict[str, Entry]:
    """The source, without what only the build of a wheel that serves as the source has put there."""
    if content["checkout"]["source"] != "wheel":
        return entries
    source = content["checkout"]["origin"].split(" ")[0]
    rules = [rule for own in pin.bases if own.filename == source for rule in own.accepted]
    with zipfile.ZipFile(base) as archive:
        packaged = set(archive.namelist())
    return {
        path: entry
        for path, entry in entries.items()
        if path in packaged or not any(rule.covers(path) for rule in rules)
    }


def _is_own_source(engine: Engine, path: str) -> bool:
    return path.startswith(f"{engine.package}/") and path != engine.version_file


def _revision(content: Mapping[str, Any], repo: Repo, release: str) -> tuple[PatchRecord, ...]:
    """A git revision that is no release, told as what it changes in the release of its base wheel."""
    own = content["checkout"]["tree"]
    if own == release:
        return ()
    diff = repo.diff(release, own)
    return (
        PatchRecord(
            name="revision",
            subject=f"Source revision {content['request']['rev']}",
            reason="the source is a git revision of its own; this is what it changes in the release",
            upstream=content["checkout"]["origin"].split(" ")[0],
            sha256=hashlib.sha256(diff.encode("utf-8", "surrogateescape")).hexdigest(),
            diff=diff,
        ),
    )


def _records(job: Job, content: Mapping[str, Any], repo: Repo) -> tuple[PatchRecord, ...]:
    series = layered(job.id.engine)
    reasons = {patch.name: patch.reason for patch in series.patches}
    return tuple(
        PatchRecord(
            name=patch["name"],
            subject=patch["subject"],
            reason=reasons.get(patch["name"], ""),
            upstream=patch["upstream"],
            sha256=patch["sha256"],
            diff=repo.diff(f"{patch['commit']}^", patch["commit"]),
        )
        for patch in content["patches"]
    )


def _ancestors(pin: Pin, content: Mapping[str, Any]) -> tuple[Ancestor, ...]:
    """What the overlay's Python comes from, as its pedigree names it."""
    kind = content["checkout"]["source"]
    source = pin.source(kind)
    name = pins.engine(pin.engine).package
    if source is None or kind == "git":
        origin = content["checkout"]["origin"].split(" ")[0]
        return (
            Ancestor(
                project=name,
                version=pin.version,
                filename=content["checkout"]["commit"],
                url=origin,
            ),
        )
    return (
        Ancestor(
            project=source.project,
            version=pin.version,
            filename=source.filename,
            sha256=source.sha256,
        ),
    )


def _built(job: Job, path: Path, content: Mapping[str, Any], *, cached: bool) -> Built:
    wheel = content["wheel"]
    return Built(
        job=job,
        path=path,
        sha256=wheel["sha256"],
        version=wheel["version"],
        base=_base_told(content["base"]),
        cached=cached,
        receipt=content,
    )


def _base_told(told: Mapping[str, Any]) -> Base:
    """The base wheel as a receipt tells of it; older ones know of no bounds and overrides."""
    kinds = {"accepted": Accepted, "bounds": Bound, "overrides": Bound}
    lists = {key: tuple(kind(**row) for row in told.get(key, ())) for key, kind in kinds.items()}
    return Base(**{**told, **lists})
