"""A file object over ranges, for readers that seek."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspatch.carry.remote.ranges import Ranges


class RangeFile(io.RawIOBase):
    """A file whose bytes are fetched when they are read."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._at = 0

    def seekable(self) -> bool:
        """Always."""
        return True

    def readable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position, from the start."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move as files do; `OSError` for a place before the start."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ranges.size()}[whence]
        if base + offset < 0:
            raise OSError(f"there is no place {base + offset} in a file")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes from here, all of them when it is negative."""
        whole = self._ranges.size()
        end = whole if size is None or size < 0 else min(whole, self._at + size)
        data = self._ranges.read(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data
