"""The checks that verify a wheel, each a function from an open wheel to the faults it found."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from dspatch.wheel.base import OpenWheel, file_sha256, measure
from dspatch.wheel.contents import SBOM_NAME
from dspatch.wheel.identity import satisfiable, stated_version
from dspatch.wheel.names import stem
from dspatch.wheel.native import diff_paths
from dspatch.wheel.pedigree import Pedigree, read_pedigree
from dspatch.wheel.plan import MemberChange
from dspatch.wheel.rawzip import same_raw
from dspatch.wheel.record import Entry


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A member that is not what it should be."""

    member: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.member}: expected {self.expected}, got {self.got}"


def record(wheel: OpenWheel) -> Iterator[Fault]:
    """Every member's contents have RECORD's hash and size, and RECORD names no other file."""
    own = f"{wheel.dist_info}/RECORD"
    for path, info in wheel.infos.items():
        if path == own:
            continue
        row = wheel.record.get(path)
        if row is None:
            yield Fault(member=path, expected="a hash and size in RECORD", got="none")
        elif fault := _contents_fault(wheel, info, row):
            yield fault
    for path in wheel.record.keys() - wheel.infos.keys():
        yield Fault(member=path, expected="a member, as RECORD names it", got="none")
    if own not in wheel.record or wheel.record[own] is not None:
        yield Fault(member=own, expected="itself, without a hash", got=str(wheel.record.get(own)))


def identity(wheel: OpenWheel) -> Iterator[Fault]:
    """File name, `.dist-info` folder, METADATA and WHEEL state the same name, version and tags."""
    folder = stem(wheel.name.project, str(wheel.name.version)) + ".dist-info"
    if wheel.dist_info != folder:
        yield Fault(member=wheel.path.name, expected=folder, got=wheel.dist_info)
    metadata = _headers(wheel, "METADATA")
    member = f"{wheel.dist_info}/METADATA"
    name = str(metadata["Name"])
    if canonicalize_name(name) != canonicalize_name(wheel.name.project):
        yield Fault(member=member, expected=f"Name: {wheel.name.project}", got=name)
    if _version(str(metadata["Version"])) != wheel.name.version:
        expected = f"Version: {wheel.name.version}"
        yield Fault(member=member, expected=expected, got=str(metadata["Version"]))
    tags = set(_headers(wheel, "WHEEL").get_all("Tag", []))
    named = {str(tag) for tag in wheel.name.tags}
    if tags != named:
        member = f"{wheel.dist_info}/WHEEL"
        yield Fault(member=member, expected=_listed(named), got=_listed(tags))


def requirements(wheel: OpenWheel) -> Iterator[Fault]:
    """No requirement asks for a local version, which an index cannot serve."""
    for requirement in _headers(wheel, "METADATA").get_all("Requires-Dist", []):
        if (better := satisfiable(requirement)) != requirement:
            yield Fault(member=f"{wheel.dist_info}/METADATA", expected=better, got=requirement)


def version(wheel: OpenWheel) -> Iterator[Fault]:
    """The engine's version module states the wheel's version."""
    found = [path for path in _identity_members(wheel) if wheel.importable(path)]
    if not found:
        yield Fault(member=wheel.path.name, expected="a version module", got="none declared")
    for path in found:
        if path not in wheel.infos:
            yield Fault(member=path, expected="a version module", got="no such member")
        elif (stated := stated_version(_read(wheel, path), path)) != str(wheel.name.version):
            yield Fault(member=path, expected=str(wheel.name.version), got=stated)


def pedigree(wheel: OpenWheel) -> Iterator[Fault]:
    """The bill of materials names this wheel, and its hashes, patches and members agree."""
    stated = _pedigree(wheel)
    member = f"{wheel.dist_info}/{SBOM_NAME}"
    own = (canonicalize_name(wheel.name.project), str(wheel.name.version))
    if (canonicalize_name(stated.name), stated.version) != own:
        got = f"{stated.name} {stated.version}"
        yield Fault(member=member, expected=" ".join(own), got=got)
    for patch in stated.patches:
        if patch.diff_sha256 != patch.stated_sha256:
            where = f"{member}, diff of {patch.name}"
            yield Fault(member=where, expected=patch.stated_sha256, got=patch.diff_sha256)
    yield from _patch_faults(wheel, stated)
    for change in stated.changes.values():
        yield from _declared_faults(wheel, change)


def against(base: OpenWheel) -> Callable[[OpenWheel], Iterator[Fault]]:
    """The check that a wheel is `base` except where its pedigree declares a change."""

    def check(wheel: OpenWheel) -> Iterator[Fault]:
        stated = _pedigree(wheel)
        digest = file_sha256(base.path)
        if digest not in stated.ancestors.values():
            known = _listed(set(stated.ancestors.values()))
            yield Fault(member=base.path.name, expected=known, got=digest)
        implied = {f"{wheel.dist_info}/{name}" for name in ("RECORD", SBOM_NAME)}
        twins = {_renamed(base, wheel, path): path for path in base.infos}
        for path in sorted((wheel.infos.keys() | twins.keys() | stated.changes.keys()) - implied):
            change = stated.changes.get(path)
            expected = _EXPECTED[change.change if change else None]
            got = _relation(wheel, path, base, twins.get(path))
            if got not in expected:
                yield Fault(member=path, expected=" or ".join(expected), got=got)

    return check


_EQUAL, _OTHER, _NEW, _GONE = (
    "the base wheel's bytes",
    "other bytes than the base wheel's",
    "a member that the base wheel lacks",
    "no such member",
)
_EXPECTED: dict[str | None, tuple[str, ...]] = {
    None: (_EQUAL,),
    "same": (_EQUAL,),
    "patched": (_OTHER,),
    "source": (_OTHER,),
    "added": (_NEW,),
    "extension": (_NEW,),
    "removed": (_GONE,),
    # A version file or WHEEL may already say what it is made to say.
    "identity": (_OTHER, _EQUAL),
}


def _relation(wheel: OpenWheel, path: str, base: OpenWheel, twin: str | None) -> str:
    if path not in wheel.infos:
        return _GONE
    if twin is None:
        return _NEW
    return _EQUAL if _same_contents(wheel, path, base, twin) else _OTHER


def _same_contents(wheel: OpenWheel, path: str, base: OpenWheel, twin: str) -> bool:
    mine, theirs = wheel.infos[path], base.infos[twin]
    if (mine.file_size, mine.CRC) != (theirs.file_size, theirs.CRC):
        return False
    if same_raw(wheel.archive, mine, base.archive, theirs):
        return True
    return measure(wheel.archive, mine) == measure(base.archive, theirs)


def _renamed(base: OpenWheel, wheel: OpenWheel, path: str) -> str:
    top, slash, rest = path.partition("/")
    if base.importable(path):
        return path
    return f"{wheel.dist_info.removesuffix('.dist-info')}.{top.rpartition('.')[2]}{slash}{rest}"


def _contents_fault(wheel: OpenWheel, info: zipfile.ZipInfo, row: Entry) -> Fault | None:
    expected = f"sha256 {row.sha256} of {row.size} bytes"
    try:
        found = measure(wheel.archive, info)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        return Fault(member=info.filename, expected=expected, got=f"unreadable data: {error}")
    if found == row:
        return None
    got = f"sha256 {found.sha256} of {found.size} bytes"
    return Fault(member=info.filename, expected=expected, got=got)


def _patch_faults(wheel: OpenWheel, stated: Pedigree) -> Iterator[Fault]:
    """Each patch's diff and the members declared changed by it are the same files."""
    roots = wheel.roots | {path.partition("/")[0] for path in stated.changes}
    for patch in stated.patches:
        told = {path for path in diff_paths(patch.diff) if path.partition("/")[0] in roots}
        declared = {path for path, item in stated.changes.items() if patch.name in item.patches}
        for path in sorted(told.symmetric_difference(declared)):
            by = ("its diff", "its members") if path in told else ("its members", "its diff")
            yield Fault(member=path, expected=f"{patch.name} in {by[1]}", got=f"only in {by[0]}")


def _declared_faults(wheel: OpenWheel, change: MemberChange) -> Iterator[Fault]:
    row = wheel.record.get(change.path)
    if change.change == "removed":
        if change.path in wheel.infos:
            yield Fault(member=change.path, expected="no such member", got="one, declared removed")
    elif row is None or row.sha256 != change.sha256:
        got = row.sha256 if row else "no such member"
        yield Fault(member=change.path, expected=f"sha256 {change.sha256}", got=got)
    if change.change in ("patched", "added", "same") and not change.patches:
        yield Fault(member=change.path, expected="a patch that explains it", got="none")


def _identity_members(wheel: OpenWheel) -> list[str]:
    changes = _pedigree(wheel).changes.values()
    return [change.path for change in changes if change.change == "identity"]


def _pedigree(wheel: OpenWheel) -> Pedigree:
    return read_pedigree(wheel.read_info(SBOM_NAME))


def _read(wheel: OpenWheel, path: str) -> bytes:
    return wheel.archive.read(path)


def _headers(wheel: OpenWheel, name: str) -> Message:
    return HeaderParser().parsestr(wheel.read_info(name).decode("utf-8", "surrogateescape"))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _listed(values: set[str]) -> str:
    return ", ".join(sorted(values)) or "nothing"
