"""The directory of a wheel: where each of its sources lies, and which sha256 RECORD gives it."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Never, cast

from dspatch import archive
from dspatch.archive import is_source
from dspatch.carry.remote.rangefile import RangeFile
from dspatch.carry.remote.ranges import Ranges
from dspatch.errors import WheelError
from dspatch.wheel.record import read_record

# A member's own header: signature, method, and the lengths of name and extra field behind it.
_HEADER = struct.Struct("<4s4xH16xHH")
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


@dataclass(frozen=True)
class Member:
    """A source in a wheel: its hash, size and mode; the bytes from `start` to `end` hold it."""

    sha256: str
    size: int
    mode: str
    start: int
    end: int


def read(filename: str, ranges: Ranges) -> dict[str, Member]:
    """The sources of a wheel by path: compiled objects, `.dist-info` and `.data` are left out.

    Raises `WheelError` for a file that is no wheel or states no sha256 of a source,
    `UnsafeArchiveError` for a member that would land outside, and what `ranges` raises.
    """
    try:
        with zipfile.ZipFile(cast("IO[bytes]", RangeFile(ranges))) as opened:
            archive.check_zip(Path(filename), opened)
            members = dict(_places(opened))
        hashes = _hashes(filename, members, ranges)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError) as error:
        _malformed(filename, str(error))
    return dict(_sources(filename, members, hashes))


def unpack(raw: bytes, size: int) -> bytes | None:
    """A member's bytes from those that hold it, `None` when they hold no member of that size."""
    if len(raw) < _HEADER.size:
        return None
    signature, method, name, extra = _HEADER.unpack_from(raw)
    data = raw[_HEADER.size + name + extra :]
    if signature != b"PK\x03\x04" or method not in (_STORED, _DEFLATED):
        return None
    if method == _DEFLATED:
        try:  # one byte more than there should be is enough to see that it is another member
            data = zlib.decompressobj(-15).decompress(data, size + 1)
        except zlib.error:
            return None
        return data if len(data) == size else None
    return data[:size] if len(data) >= size else None


def _places(opened: zipfile.ZipFile) -> Iterator[tuple[str, tuple[zipfile.ZipInfo, int]]]:
    """Every file with the place where the bytes that hold it end."""
    infos = sorted(opened.infolist(), key=lambda info: info.header_offset)
    ends = [*(info.header_offset for info in infos[1:]), opened.start_dir]
    for info, end in zip(infos, ends, strict=False):
        if not info.is_dir():
            yield info.filename, (info, end)


def _hashes(
    filename: str, members: Mapping[str, tuple[zipfile.ZipInfo, int]], ranges: Ranges
) -> dict[str, str]:
    found = [p for p in members if p.endswith(".dist-info/RECORD") and p.count("/") == 1]
    if len(found) != 1:
        _malformed(filename, f"it has {len(found)} RECORD files: {found}")
    info, end = members[found[0]]
    data = unpack(ranges.read(info.header_offset, end), info.file_size)
    if data is None or zlib.crc32(data) != info.CRC:
        _malformed(filename, f"{found[0]} is spoilt")
    return {path: entry.sha256 for path, entry in read_record(data.decode()).items() if entry}


def _sources(
    filename: str,
    members: Mapping[str, tuple[zipfile.ZipInfo, int]],
    hashes: Mapping[str, str],
) -> Iterator[tuple[str, Member]]:
    for path, (info, end) in sorted(members.items()):
        if not is_source(path):
            continue
        if path not in hashes:
            _malformed(filename, f"its RECORD states no sha256 of {path}")
        executable = (info.external_attr >> 16) & stat.S_IXUSR
        yield (
            path,
            Member(
                sha256=hashes[path],
                size=info.file_size,
                mode="100755" if executable else "100644",
                start=info.header_offset,
                end=end,
            ),
        )


def _malformed(filename: str, why: str) -> Never:
    raise WheelError(
        f"{filename} is not a readable wheel.",
        why=why,
        next="use an index that serves the published wheel",
    ) from None
