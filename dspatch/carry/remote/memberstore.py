"""What was read of wheels that lie elsewhere, kept in the cache: members by sha256, directories by wheel."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.files import write_atomically

LEVEL = 6


def read(sha256: str) -> bytes | None:
    """A member's bytes, `None` when they are not kept or were spoilt since."""
    try:
        data = zlib.decompress(_member(sha256).read_bytes())
    except (FileNotFoundError, zlib.error):
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def write(sha256: str, data: bytes) -> None:
    """Keep a member; raises `DiskFullError`."""
    write_atomically(_member(sha256), zlib.compress(data, LEVEL))


def read_directory(wheel: str) -> Any:
    """The directory kept of the wheel with that sha256, `None` when there is none to use."""
    try:
        return json.loads(zlib.decompress(_directory(wheel).read_bytes()))
    except (FileNotFoundError, zlib.error, ValueError):
        return None


def write_directory(wheel: str, content: Any) -> None:
    """Keep a directory, which is anything that JSON can hold; raises `DiskFullError`."""
    write_atomically(_directory(wheel), zlib.compress(json.dumps(content).encode(), LEVEL))


def _member(sha256: str) -> Path:
    return paths.cache() / "members" / sha256[:2] / sha256


def _directory(wheel: str) -> Path:
    return paths.cache() / "wheel-directories" / wheel
