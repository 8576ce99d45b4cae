"""What a diff says, file by file and hunk by hunk, as unidiff reads it: to judge it by, never to apply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspatch.errors import DiffFormatError

if TYPE_CHECKING:
    from unidiff.patch import Hunk as UnidiffHunk
    from unidiff.patch import PatchedFile

NO_FILE = "/dev/null"
_NEXT = "make it with `git diff --binary --full-index`, or `git format-patch`"


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
    body = _without_message(diff)
    files = _parsed(body)
    lines = body.split("\n")
    starts = [_start(file, lines) for file in files]
    ends = [*starts[1:], len(lines)]
    sections = [
        "\n".join(lines[a:b]) + "\n" * (b < len(lines))
        for a, b in zip(starts, ends, strict=True)
    ]  # fmt: skip
    return tuple(_file(file, text) for file, text in zip(files, sections, strict=True))


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


def unquoted(path: str) -> str:
    """A path as git writes it in a diff, without the quotes that special characters ask for."""
    path = path.split("\t", 1)[0]
    if not (path.startswith('"') and path.endswith('"') and len(path) > 1):
        return path
    raw = re.sub(
        rb"\\([0-7]{3}|.)",
        lambda found: _unescaped(found[1]),
        path[1:-1].encode("utf-8", "surrogateescape"),
    )
    return raw.decode("utf-8", "surrogateescape")


_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13}


def _unescaped(code: bytes) -> bytes:
    if len(code) == 3:
        return bytes([int(code, 8) & 0xFF])
    return bytes([_ESCAPES[code]]) if code in _ESCAPES else code


def _without_message(diff: str) -> str:
    """The diff from where git would begin to read it: behind a mail's header and message."""
    if not re.match(r"(From |[A-Za-z-]+: )", diff):
        return diff
    body = diff.partition("\n\n")[2]
    lines = body.split("\n")
    first = next((n for n, line in enumerate(lines) if _breaks(line)), len(lines))
    start = next((n for n in range(first, len(lines)) if _begins(lines, n)), len(lines))
    return "\n".join(lines[start:])


def _breaks(line: str) -> bool:
    """Whether a line of a mail ends its message, by the rule of `git mailinfo`."""
    return (
        line.startswith(("diff -", "Index: ", "--- ")) or re.fullmatch(r"---\s*", line) is not None
    )


def _begins(lines: Sequence[str], number: int) -> bool:
    """Whether a diff begins at a line: with git's header, or with the two of a plain diff."""
    plain = lines[number].startswith("--- ") and lines[number + 1 :][:1] != []
    return lines[number].startswith("diff --git ") or (
        plain and lines[number + 1].startswith("+++ ")
    )


def _parsed(body: str) -> list[PatchedFile]:
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    try:
        return list(PatchSet(body))
    except (UnidiffParseError, ValueError) as error:
        raise DiffFormatError("the diff cannot be read.", why=str(error), next=_NEXT) from None


def _start(file: PatchedFile, lines: Sequence[str]) -> int:
    """The first line of a file's part, counted from 0; unidiff knows plain diffs by their second."""
    number = (file.diff_line_no or 1) - 1
    return number if lines[number].startswith("diff ") else max(number - 1, 0)


def _file(file: PatchedFile, text: str) -> FileDiff:
    head = _Head(text)
    return FileDiff(
        old_path=head.old_path,
        new_path=head.new_path,
        old_mode=head.old_mode,
        new_mode=head.new_mode,
        old_blob=head.old_blob,
        new_blob=head.new_blob,
        binary=file.is_binary_file,
        hunks=tuple(_hunk(hunk) for hunk in file),
        text=text,
    )


def _hunk(hunk: UnidiffHunk) -> Hunk:
    return Hunk(
        old_start=hunk.source_start,
        old_count=hunk.source_length,
        new_start=hunk.target_start,
        new_count=hunk.target_length,
        section=hunk.section_header,
        before=tuple(_lines(hunk, "-")),
        after=tuple(_lines(hunk, "+")),
        added=hunk.added,
        removed=hunk.removed,
    )


def _lines(hunk: UnidiffHunk, side: str) -> Iterator[str]:
    """The lines of one side, the last without its line end where the diff says so."""
    found: list[str] = []
    last = ""
    for line in hunk:
        if line.line_type == "\\":
            if last in (" ", side) and found:
                found[-1] = found[-1].removesuffix("\n")
            continue
        last = line.line_type or " "
        if last in (" ", side):
            found.append(line.value)
    yield from found


class _Head:
    """The header of a file's part: paths, modes and blobs, as git's extended headers give them."""

    def __init__(self, text: str) -> None:
        self.old_mode: str | None = None
        self.new_mode: str | None = None
        self.old_blob: str | None = None
        self.new_blob: str | None = None
        self._named: dict[str, str] = {}
        lines = text.split("\n")
        for line in lines:
            if line.startswith(("@@ ", "GIT binary patch")):
                break
            self._take(line)
        both = _both_sides(lines[0])
        self.old_path = self._side("---", "rename from", "copy from", both)
        self.new_path = self._side("+++", "rename to", "copy to", both)
        self._settle()

    def _take(self, line: str) -> None:
        for key in ("--- ", "+++ ", "rename from ", "rename to ", "copy from ", "copy to "):
            if line.startswith(key):
                self._named.setdefault(key.strip(), unquoted(line[len(key) :].rstrip("\r")))
        if found := re.match(r"(old|new|new file|deleted file) mode (\d+)", line):
            self._mode(found[1], found[2])
        elif found := re.match(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?", line):
            self.old_blob, self.new_blob = found[1], found[2]
            if found[3]:
                self.old_mode = self.new_mode = found[3]

    def _mode(self, kind: str, mode: str) -> None:
        if kind in ("old", "deleted file"):
            self.old_mode = mode
        else:
            self.new_mode = mode
        if kind in ("new file", "deleted file"):
            self._named[{"new file": "---", "deleted file": "+++"}[kind]] = NO_FILE

    def _side(self, key: str, rename: str, copy: str, both: str | None) -> str | None:
        moved = self._named.get(rename) or self._named.get(copy)
        if moved:
            return moved
        named = self._named.get(key, both)
        if named is None or named == NO_FILE:
            return None
        return named if named == both else re.sub(r"^[a-z0-9]/", "", named, count=1)

    def _settle(self) -> None:
        if self.old_path is None:
            self.old_mode = self.old_blob = None
        if self.new_path is None:
            self.new_mode = self.new_blob = None


def _both_sides(line: str) -> str | None:
    """The one path that `diff --git a/PATH b/PATH` names on both sides, if it does."""
    rest = line.removeprefix("diff --git ")
    if rest == line:
        return None
    half = (len(rest) - 1) // 2
    old, new = unquoted(rest[:half]), unquoted(rest[half + 1 :])
    return new[2:] if old[2:] == new[2:] and old[1:2] == new[1:2] == "/" else None
