"""What a delta holds: the two wheels it leads between, and each file's bytes on either side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .misfit import Misfit

if TYPE_CHECKING:
    Recipe = Mapping[str, Any]

MANIFEST = "delta.json"
# Stands for the `.dist-info` folder, whose name is another on each side.
INFO = ".dist-info"


@dataclass(frozen=True)
class Side:
    """A wheel as it is when installed; `members` is a hash over what its RECORD says of the package."""

    project: str
    version: str
    info: str
    members: str
    wheel: str


@dataclass(frozen=True)
class File:
    """A file that the delta changes: its sha256 on each side (None: no such file), and how it is made.

    `identity` marks those that state name, version and build, which every build writes itself.
    """

    path: str
    base: str | None
    overlay: str | None
    to_base: Recipe | None
    to_overlay: Recipe | None
    executable: bool = False
    identity: bool = False


@dataclass(frozen=True)
class Delta:
    """A delta; `blob` reads bytes that it carries whole."""

    base: Side
    overlay: Side
    files: tuple[File, ...]
    blob: Callable[[str], bytes]

    def made(self, recipe: Recipe, source: bytes, sha256: str, path: str) -> bytes:
        """A file's bytes on the other side, made from its bytes on this one."""
        try:
            if "blob" in recipe:
                data = self.blob(recipe["blob"])
            else:
                data = b"".join(_piece(piece, source) for piece in recipe["pieces"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(f"{path}: {error!r}") from None
        if hash_of(data) != sha256:
            raise _damaged(f"{path} does not come out right")
        return data


def read(read_member: Callable[[str], bytes]) -> Delta:
    """The delta whose members `read_member` reads; raises `Misfit` for a damaged or an unsafe one."""
    try:
        content = json.loads(read_member(MANIFEST))
        if content["format"] != 1:
            raise Misfit(f"The delta has the unknown format {content['format']}.")
        files = tuple(_file(row) for row in content["files"])
        base, overlay = Side(**content["base"]), Side(**content["overlay"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(repr(error)) from None
    for file in files:
        _refuse_outside(file.path)
    return Delta(base=base, overlay=overlay, files=files, blob=read_member)


def hash_of(data: bytes) -> str:
    """The sha256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _file(row: Mapping[str, Any]) -> File:
    return File(
        path=row["path"],
        base=row["base"],
        overlay=row["overlay"],
        to_base=row["to-base"],
        to_overlay=row["to-overlay"],
        executable=row["executable"],
        identity=row["identity"],
    )


def _piece(piece: Any, source: bytes) -> bytes:
    if isinstance(piece, str):
        return piece.encode("utf-8", "surrogateescape")
    start, end = piece
    return source[start:end]


def _damaged(why: str) -> Misfit:
    return Misfit("The delta file is damaged.", why, "fetch or build it anew")


def _refuse_outside(path: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or "\0" in path or {"", ".", ".."} & set(parts):
        raise Misfit(f"The delta names {path!r}, which could lie outside of site-packages.")
