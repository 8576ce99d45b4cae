"""Refuse to change what an overlay cannot rebuild: native sources and the build's own files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from dspatch import diffs
from dspatch.errors import NativeSourceError
from dspatch.wheel.plan import PatchRecord

_FOLDERS = ("csrc/", "cmake/", "rust/", "src/turbomind/")
_FILES = ("CMakeLists.txt", "Cargo.toml", "Cargo.lock", "setup.py", "setup.cfg", "pyproject.toml")
_SUFFIXES = re.compile(
    r"\.(c|cc|cpp|cxx|cu|cuh|h|hpp|hxx|inl|rs|s|asm|cmake|pyx|pxd|proto)$", re.IGNORECASE
)
_SHOWN = 10


def is_native(path: str) -> bool:
    """Whether a file of the source is compiled, or steers what is compiled and how."""
    pure = PurePosixPath(path)
    return path.startswith(_FOLDERS) or pure.name in _FILES or _SUFFIXES.search(path) is not None


def refuse_native(changed: Iterable[str], patches: Iterable[PatchRecord]) -> None:
    """Raise `NativeSourceError`, with files and patches, when a native source was changed."""
    native = sorted(path for path in changed if is_native(path))
    if not native:
        return
    blamed = {patch.name: sorted(diff_paths(patch.diff).intersection(native)) for patch in patches}
    by_patch = [f"{name}: {', '.join(paths)}" for name, paths in blamed.items() if paths]
    raise NativeSourceError(
        f"An overlay wheel cannot change native sources: {_list(native)}.",
        why="its compiled objects are the base wheel's and would not follow the change"
        + (f" ({'; '.join(by_patch)})" if by_patch else ""),
        next="leave those patches out, or build the wheel from source",
    )


def diff_paths(diff: str) -> frozenset[str]:
    """The paths that a git diff touches, old and new."""
    return frozenset(path for file in diffs.read(diff) for path in file.paths)


def _list(paths: list[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
