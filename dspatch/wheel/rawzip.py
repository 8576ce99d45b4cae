"""Write a zip whole or not at all, with members copied from another one as they are compressed."""

from __future__ import annotations

import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import IO

from dspatch.errors import WheelError
from dspatch.files import disk_full_explained

CHUNK = 1 << 20
_LOCAL_HEADER = 30
_DATA_DESCRIPTOR = 0x08
_ENCRYPTED = 0x01
# What a zip archive's clock starts with.
_DOS_START = 315_532_800


@contextmanager
def whole_zip(path: Path, *, head: bytes = b"", mode: int = 0o644) -> Iterator[zipfile.ZipFile]:
    """A zip to be filled inside this block, behind the bytes of `head`; it comes whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        disk_full_explained(path.parent),
        tempfile.TemporaryDirectory(prefix=".zip-", dir=path.parent) as folder,
    ):
        partial = Path(folder) / path.name
        with partial.open("wb") as stream:
            stream.write(head)
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as target:
                yield target
        # Not what the umask makes of it.
        partial.chmod(mode)
        partial.replace(path)


def copy_member(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: zipfile.ZipFile, name: str
) -> None:
    """Append a member to `target` under `name`, its compressed bytes, time and mode as they are.

    Headers are written by zipfile itself, so that 64-bit sizes and offsets are its business.
    """
    copied = copy(info)
    copied.filename = copied.orig_filename = name
    # Sizes are known here: they go into the header, and no descriptor follows the data.
    copied.flag_bits &= ~_DATA_DESCRIPTOR
    # Its only other use, times finer than two seconds, would tie the wheel to the base's builder.
    copied.extra = b""
    source, out = _stream(archive), _stream(target)
    out.seek(target.start_dir)
    copied.header_offset = out.tell()
    out.write(copied.FileHeader())
    source.seek(data_offset(source, info))
    _copy(source, out, info.compress_size, name)
    target.start_dir = out.tell()
    target.filelist.append(copied)
    target.NameToInfo[name] = copied


def write_member(target: zipfile.ZipFile, name: str, data: bytes, *, epoch: int, mode: int) -> None:
    """Append a member of our own, dated `epoch` (seconds).

    It is stored, not deflated: zlib's versions deflate differently, and a wheel shall be the same
    bytes on every machine. An overlay writes well under 1 % of its wheel anew.
    """
    info = zipfile.ZipInfo(name, time.gmtime(max(epoch, _DOS_START))[:6])
    info.create_system = 3
    info.external_attr = (0o100000 | mode) << 16
    target.writestr(info, data)


def data_offset(source: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where a member's compressed bytes begin; raises `WheelError` when its header is not there."""
    source.seek(info.header_offset)
    header = source.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04" or info.flag_bits & _ENCRYPTED:
        raise WheelError(
            f"The member {info.filename} cannot be read.",
            why="its local header is missing, or it is encrypted",
            next="delete the wheel and fetch it again",
        )
    name_length = int.from_bytes(header[26:28], "little")
    extra_length = int.from_bytes(header[28:30], "little")
    return info.header_offset + _LOCAL_HEADER + name_length + extra_length


def same_raw(
    one: zipfile.ZipFile, info: zipfile.ZipInfo, other: zipfile.ZipFile, twin: zipfile.ZipInfo
) -> bool:
    """Whether two members have the same compressed bytes by the same method."""
    if (info.compress_type, info.compress_size) != (twin.compress_type, twin.compress_size):
        return False
    left, right = _stream(one), _stream(other)
    left.seek(data_offset(left, info))
    right.seek(data_offset(right, twin))
    remaining = info.compress_size
    while remaining:
        count = min(CHUNK, remaining)
        chunk = left.read(count)
        if len(chunk) < count or chunk != right.read(count):
            return False
        remaining -= count
    return True


def _copy(source: IO[bytes], out: IO[bytes], count: int, name: str) -> None:
    while count:
        chunk = source.read(min(CHUNK, count))
        if not chunk:
            raise WheelError(
                f"The base wheel ends inside the member {name}.",
                next="delete the wheel and fetch it again",
            )
        out.write(chunk)
        count -= len(chunk)


def _stream(archive: zipfile.ZipFile) -> IO[bytes]:
    assert archive.fp is not None, "the archive is closed"
    return archive.fp
