"""The header of a file's part of a diff: paths, modes and blobs, as git's extended headers give them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dspatch.difflines import NEXT
from dspatch.errors import DiffFormatError

NO_FILE = "/dev/null"
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13}
_NAMING = ("--- ", "+++ ", "rename from ", "rename to ", "copy from ", "copy to ")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a header says of both sides; one that does not exist has no path, mode or blob."""

    old_path: str | None
    new_path: str | None
    old_mode: str | None
    new_mode: str | None
    old_blob: str | None
    new_blob: str | None
    binary: bool

    @property
    def changes(self) -> bool:
        """Whether the header alone says that something changes."""
        return self.binary or self.old_path != self.new_path or self.old_mode != self.new_mode


def read(lines: Sequence[str]) -> Head:
    """Read a header, from `diff --git` or `---` to the first hunk. Raises `DiffFormatError`."""
    named: dict[str, str] = {}
    modes: dict[str, str] = {}
    blobs: tuple[str, str] | None = None
    binary = False
    for line in (each.rstrip("\r\n") for each in lines):
        for key in _NAMING:
            if line.startswith(key):
                named.setdefault(key.strip(), unquoted(line[len(key) :]))
        if found := re.match(r"(old|new|new file|deleted file) mode (\d+)", line):
            modes[found[1]] = found[2]
        elif found := re.match(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?", line):
            blobs = (found[1], found[2])
            modes.setdefault("both", found[3] or "")
        elif re.match(r"GIT binary patch$|(Binary )?[Ff]iles .* differ$", line):
            binary = True
            break
    old, new = _paths(lines[0].rstrip("\r\n"), named, modes)
    return Head(
        old_path=old,
        new_path=new,
        old_mode=_mode(modes, "old", "deleted file") if old else None,
        new_mode=_mode(modes, "new", "new file") if new else None,
        old_blob=blobs[0] if blobs and old else None,
        new_blob=blobs[1] if blobs and new else None,
        binary=binary,
    )


def unquoted(path: str) -> str:
    """A path as git writes it in a diff, without the quotes that special characters ask for."""
    if not (found := re.match(r'"((?:[^"\\]|\\.)*)"', path)):
        return path.split("\t", 1)[0]
    raw = re.sub(
        rb"\\([0-7]{3}|.)",
        lambda escaped: _unescaped(escaped[1]),
        found[1].encode("utf-8", "surrogateescape"),
    )
    return raw.decode("utf-8", "surrogateescape")


def _unescaped(code: bytes) -> bytes:
    if len(code) == 3:
        return bytes([int(code, 8) & 0xFF])
    return bytes([_ESCAPES[code]]) if code in _ESCAPES else code


def _mode(modes: dict[str, str], *kinds: str) -> str | None:
    return next((modes[kind] for kind in (*kinds, "both") if modes.get(kind)), None)


def _paths(
    first: str, named: dict[str, str], modes: dict[str, str]
) -> tuple[str | None, str | None]:
    both = _both_sides(first)
    moved = [
        named.get(f"{kind} {way}")
        for way in ("from", "to")
        for kind in ("rename", "copy")
        if f"{kind} {way}" in named
    ]
    told = moved if len(moved) == 2 else [both, both]
    if len(moved) != 2:
        _refuse_unprefixed(first, named)
    sides = [
        _stripped(named[key]) if key in named else own
        for key, own in zip(("---", "+++"), told, strict=True)
    ]
    if any(None not in (side, own) and side != own for side, own in zip(sides, told, strict=True)):
        raise _error("the header of a file names several paths", first)
    old, new = moved if len(moved) == 2 else sides
    old = None if "new file" in modes else old
    new = None if "deleted file" in modes else new
    for path in (old, new):
        _refuse_outside(path)
    if old is None and new is None:
        raise _error("a file's header names no path", first)
    return old, new


def _stripped(path: str) -> str | None:
    """A path without its first folder, which git takes off a diff's paths."""
    return None if path == NO_FILE else path.partition("/")[2].lstrip("/") or path


def _both_sides(line: str) -> str | None:
    """The one path that `diff --git a/PATH b/PATH` names on both sides, if it does."""
    rest = line.removeprefix("diff --git ")
    if rest == line:
        return None
    half = (len(rest) - 1) // 2
    old, new = unquoted(rest[:half]), unquoted(rest[half + 1 :])
    same = old.partition("/")[2] == new.partition("/")[2] and "/" in old and "/" in new
    return _stripped(new) if same else None


def _refuse_unprefixed(first: str, named: dict[str, str]) -> None:
    old, new = named.get("---"), named.get("+++")
    if old is not None and old == new and old != NO_FILE:
        raise DiffFormatError(
            f"the diff of {old} was made without the prefixes a/ and b/.",
            why="git takes the first folder off every path, here one of the tree's own",
            next="make it with `git diff --src-prefix=a/ --dst-prefix=b/`",
        )


def _refuse_outside(path: str | None) -> None:
    parts = ["x"] if path is None else path.split("/")
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise _error("it names a path outside of any tree", path or "")


def _error(why: str, line: str) -> DiffFormatError:
    return DiffFormatError("the diff cannot be read.", why=f"{why}: {line}", next=NEXT)
