"""From a delta and an installation to what is to be written and removed, with everything checked first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import fit, otherbuild, rows
from .manifest import INFO, hash_of
from .site import Installed, target
from .way import KEPT, Way

# pip and uv would take the patched distribution for the file that the unpatched one came from.
ORIGINS = {name: f"{name[:-5]}.base.json" for name in ("direct_url.json", "uv_cache.json")}


@dataclass(frozen=True)
class Write:
    """A file to be written; `like` is the file whose mode it takes over, None for a new one."""

    path: str
    data: bytes
    like: str | None = None
    executable: bool = False


@dataclass(frozen=True)
class Plan:
    """Files to write, then files to remove; compiled files of `sources` are out of date by then."""

    site: Installed
    writes: tuple[Write, ...]
    removals: tuple[str, ...]
    sources: tuple[str, ...]


def make(way: Way) -> Plan:
    """What takes an installation to the other side of a delta; raises `Misfit`, writes nothing."""
    before = fit.before(way)
    writes = list(_changed(way, before))
    moved = dict(_moved(way))
    writes += [
        Write(path=new, data=target(way.site.root, old).read_bytes(), like=old)
        for old, new in moved.items()
    ]
    renamed = {
        way.path_here(file): way.path_there(file)
        for file in way.delta.files
        if file.path.startswith(f"{INFO}/")
    }
    gone = {way.path_here(f) for f in way.delta.files if way.hash_there(f) is None}
    if way.undo:
        gone |= set(_files(way, KEPT))
    own = f"{way.there.info}/RECORD"
    written = {write.path: write.data for write in writes}
    text = rows.rewritten(way.site, {**moved, **renamed}, written, gone, own)
    writes.append(Write(path=own, data=text, like=f"{way.site.info}/RECORD"))
    left = [*sorted(gone), *moved, *renamed, f"{way.site.info}/RECORD"]
    return Plan(
        site=way.site,
        writes=tuple(writes),
        removals=tuple(path for path in dict.fromkeys(left) if path not in {*written, own}),
        sources=tuple(f.path for f in way.delta.files if f.path.endswith(".py")),
    )


def _changed(way: Way, before: dict[str, bytes | None]) -> Iterator[Write]:
    """The files that the delta itself changes or adds."""
    own: dict[str, bytes] = {}
    kept: dict[str, bytes] = {}
    # The bill of materials last: it tells the hashes of the others.
    for file in sorted(way.delta.files, key=otherbuild.is_bill):
        if way.hash_there(file) is None:
            continue
        data = before[file.path]
        like = None if data is None else way.path_here(file)
        if way.undo and otherbuild.is_kept(way, file):
            made = otherbuild.original(way, file)
        elif data is not None and _is_own(way, data, way.hash_here(file)):
            made = otherbuild.rewritten(way, file, data)
            kept[file.path] = data
        else:
            made = way.made(file, data)
            if otherbuild.is_bill(file) and way.other_build and not way.undo:
                made = otherbuild.bill(way, made, own)
        own[way.path_there(file)] = made
        yield Write(path=way.path_there(file), data=made, like=like, executable=file.executable)
    if way.other_build and not way.undo:
        for path, data in otherbuild.kept(way, kept).items():
            yield Write(path=path, data=data)


def _is_own(way: Way, data: bytes, expected: str | None) -> bool:
    """Whether an installation has bytes of its own there, which only another build may have."""
    return way.other_build and hash_of(data) != expected


def _moved(way: Way) -> Iterator[tuple[str, str]]:
    """All other files of the `.dist-info` folder, whose name changes with the version."""
    back = {kept: name for name, kept in ORIGINS.items()}
    origin = back if way.undo else ORIGINS
    touched = {way.path_here(file) for file in way.delta.files} | {f"{way.site.info}/RECORD"}
    for path in _files(way, ""):
        inner = path[len(way.site.info) + 1 :]
        if path not in touched and not inner.startswith(f"{KEPT}/"):
            yield path, f"{way.there.info}/{origin.get(inner, inner)}"


def _files(way: Way, below: str) -> Iterator[str]:
    folder = way.site.root / way.site.info
    for place in sorted((folder / below).rglob("*")):
        if place.is_file():
            yield f"{way.site.info}/{place.relative_to(folder).as_posix()}"
