"""What a diff does, file by file and hunk by hunk, as unidiff reads it: for reports, never to apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unidiff.patch import Hunk, PatchedFile


def statistics(diff: str) -> dict[str, Any]:
    """Lines added and removed, and the same for every file and hunk of a diff."""
    from unidiff.patch import PatchSet

    parsed = PatchSet(diff)
    return {
        "added": parsed.added,
        "removed": parsed.removed,
        "files": [_file(file) for file in parsed],
    }


def _file(file: PatchedFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "new": file.is_added_file,
        "added": file.added,
        "removed": file.removed,
        "hunks": [_hunk(hunk) for hunk in file],
    }


def _hunk(hunk: Hunk) -> dict[str, Any]:
    return {
        "at": hunk.target_start,
        "lines": hunk.target_length,
        "added": hunk.added,
        "removed": hunk.removed,
        "within": hunk.section_header,
    }
