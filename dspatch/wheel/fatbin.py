"""Read from compiled members which CUDA architectures their machine code is for."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from dspatch.wheel.elf import shared_objects

# A fatbinary, as nvcc puts one into an object: magic, version, size of this header, size of what
# follows. Then entries: kind, version, size of the header, size of the data; at byte 28 the architecture.
_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_MACHINE_CODE = 2  # 1 is PTX, which a card's driver compiles


def of_wheel(wheel: Path) -> frozenset[int]:
    """The architectures of all machine code for CUDA in a wheel, such as 90; 90a and 90 are one."""
    found = set[int]()
    with zipfile.ZipFile(wheel) as archive:
        for name in shared_objects(archive):
            found |= architectures(archive.read(name))
    return frozenset(found)


def architectures(data: bytes) -> frozenset[int]:
    """The architectures of the machine code in the bytes of an object or a shared object."""
    return frozenset(arch for start, end in _fatbinaries(data) for arch in _of(data, start, end))


def _fatbinaries(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the entries of each fatbinary begin and end."""
    at = data.find(_MAGIC)
    while at >= 0:
        after = at + len(_MAGIC)
        if at + _HEADER.size <= len(data):
            _, version, header, size = _HEADER.unpack_from(data, at)
            # The four bytes may stand in any data.
            if (version, header) == (1, _HEADER.size) and at + header + size <= len(data):
                yield at + header, (after := at + header + size)
        at = data.find(_MAGIC, after)


def _of(data: bytes, start: int, end: int) -> Iterator[int]:
    while start + _ENTRY.size <= end:
        kind, _, header, size, arch = _ENTRY.unpack_from(data, start)
        if kind == _MACHINE_CODE:
            yield arch
        if header < _ENTRY.size:
            return
        start += header + size
