"""The checks that verify a wheel, each a function from an open wheel to the faults it found."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from dspatch.wheel.base import Members, OpenWheel, measure
from dspatch.wheel.fault import Fault, listed
from dspatch.wheel.metadata import satisfiable
from dspatch.wheel.names import stem
from dspatch.wheel.pedigree import stated_pedigree
from dspatch.wheel.record import Entry
from dspatch.wheel.versionfile import stated_version


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
    yield from stated(wheel)
    tags = set(headers(wheel, "WHEEL").get_all("Tag", []))
    named = {str(tag) for tag in wheel.name.tags}
    if tags != named:
        member = f"{wheel.dist_info}/WHEEL"
        yield Fault(member=member, expected=listed(named), got=listed(tags))


def stated(wheel: Members) -> Iterator[Fault]:
    """METADATA states the name and the version that the file or the `.dist-info` folder is named by."""
    metadata = headers(wheel, "METADATA")
    member = f"{wheel.dist_info}/METADATA"
    name, version = str(metadata["Name"]), str(metadata["Version"])
    if canonicalize_name(name) != canonicalize_name(wheel.name.project):
        yield Fault(member=member, expected=f"Name: {wheel.name.project}", got=name)
    if _version(version) != wheel.name.version:
        yield Fault(member=member, expected=f"Version: {wheel.name.version}", got=version)


def requirements(wheel: Members) -> Iterator[Fault]:
    """No requirement asks for a local version, which an index cannot serve."""
    for requirement in headers(wheel, "METADATA").get_all("Requires-Dist", []):
        if (better := satisfiable(requirement)) != requirement:
            yield Fault(member=f"{wheel.dist_info}/METADATA", expected=better, got=requirement)


def version(wheel: Members) -> Iterator[Fault]:
    """The engine's version module states the wheel's version."""
    found = [path for path in _identity_members(wheel) if wheel.importable(path)]
    if not found:
        yield Fault(member=wheel.path.name, expected="a version module", got="none declared")
    for path in found:
        if path not in wheel.infos:
            yield Fault(member=path, expected="a version module", got="no such member")
        elif (stated := stated_version(wheel.read(path), path)) != str(wheel.name.version):
            yield Fault(member=path, expected=str(wheel.name.version), got=stated)


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


def _identity_members(wheel: Members) -> list[str]:
    changes = stated_pedigree(wheel).changes.values()
    return [change.path for change in changes if change.change == "identity"]


def headers(wheel: Members, name: str) -> Message:
    """The fields of METADATA or WHEEL."""
    return HeaderParser().parsestr(wheel.read_info(name).decode("utf-8", "surrogateescape"))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
