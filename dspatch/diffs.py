"""What a diff says, file by file and hunk by hunk: to judge it by, never to apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dspatch import diffhead, difflines
from dspatch.difflines import HunkLines, Part
from dspatch.errors import DiffFormatError


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One place of a file: the lines before and after, context included, with their line ends."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    added: int
    removed: int


@dataclass(frozen=True, kw_only=True)
class FileDiff:
    """What a diff does to one file; a side that does not exist has no path, mode or blob.

    `text` is the file's own part of the diff.
    """

    old_path: str | None
    new_path: str | None
    old_mode: str | None
    new_mode: str | None
    old_blob: str | None
    new_blob: str | None
    binary: bool
    hunks: tuple[Hunk, ...]
    text: str

    @property
    def path(self) -> str:
        """The path after the change, or before it for a file that is deleted."""
        return self.new_path or self.old_path or ""

    @property
    def paths(self) -> frozenset[str]:
        """The paths of both sides."""
        return frozenset(path for path in (self.old_path, self.new_path) if path)


def read(diff: str) -> tuple[FileDiff, ...]:
    """The files of a diff, in order; a mail's header and message are passed over as git does.

    `diff` is decoded with `surrogateescape`. Raises `DiffFormatError`.
    """
    return tuple(_file(part) for part in difflines.parts(diff))


def statistics(diff: str) -> dict[str, Any]:
    """Lines added and removed, and the same for every file and hunk of a diff."""
    files = [_file_statistics(file) for file in read(diff)]
    return {
        "added": sum(file["added"] for file in files),
        "removed": sum(file["removed"] for file in files),
        "files": files,
    }


def _file_statistics(file: FileDiff) -> dict[str, Any]:
    return {
        "path": file.path,
        "new": file.old_path is None,
        "added": sum(hunk.added for hunk in file.hunks),
        "removed": sum(hunk.removed for hunk in file.hunks),
        "hunks": [
            {
                "at": hunk.new_start,
                "lines": hunk.new_count,
                "added": hunk.added,
                "removed": hunk.removed,
                "within": hunk.section,
            }
            for hunk in file.hunks
        ],
    }


def _file(part: Part) -> FileDiff:
    head = diffhead.read(part.header)
    if not (part.hunks or head.changes):
        raise DiffFormatError(
            "the diff cannot be read.",
            why=f"it does nothing to {head.new_path or head.old_path}",
            next=difflines.NEXT,
        )
    return FileDiff(
        old_path=head.old_path,
        new_path=head.new_path,
        old_mode=head.old_mode,
        new_mode=head.new_mode,
        old_blob=head.old_blob,
        new_blob=head.new_blob,
        binary=head.binary,
        hunks=tuple(_hunk(hunk) for hunk in part.hunks),
        text=part.text,
    )


def _hunk(hunk: HunkLines) -> Hunk:
    return Hunk(
        old_start=hunk.old_start,
        old_count=hunk.old_count,
        new_start=hunk.new_start,
        new_count=hunk.new_count,
        section=hunk.section,
        before=tuple(_side(hunk.lines, "-")),
        after=tuple(_side(hunk.lines, "+")),
        added=sum(line.startswith("+") for line in hunk.lines),
        removed=sum(line.startswith("-") for line in hunk.lines),
    )


def _side(lines: Sequence[str], side: str) -> Iterator[str]:
    """The lines of one side, the last without its line end where the diff says so."""
    for line, behind in zip(lines, [*lines[1:], ""], strict=True):
        if line[0] in ("\n", " ", side):
            own = line if line == "\n" else line[1:]
            yield own.removesuffix("\n") if behind.startswith("\\") else own
