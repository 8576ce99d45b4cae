"""A folder as a mapping from paths to bytes, read when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path


class FolderFiles(Mapping[str, bytes]):
    """The regular files below a folder by their relative path; links and `.git` are left out.

    The list is taken once, at the start; the bytes are read at each look-up and never kept.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths = frozenset(_walk(root))

    def __getitem__(self, path: str) -> bytes:
        if path not in self._paths:
            raise KeyError(path)
        return (self._root / path).read_bytes()

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._paths))

    def __len__(self) -> int:
        return len(self._paths)


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        inner = Path(folder).relative_to(root)
        yield from ((inner / name).as_posix() for name in names if _is_file(Path(folder, name)))


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
