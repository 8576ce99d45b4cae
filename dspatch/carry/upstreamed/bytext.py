"""Which parts of a file's diff a tree has already, by their lines, or by the file as a whole."""

from __future__ import annotations

from pathlib import PurePosixPath

from dspatch.carry.upstreamed import hunkfind
from dspatch.carry.upstreamed.hunkfind import State
from dspatch.carry.upstreamed.parts import Part, Readable
from dspatch.diffs import FileDiff, Hunk
from dspatch.threeway import blob_id


def by_text(file: FileDiff, target: Readable) -> list[Part]:
    """The parts of a file's diff, each judged by what stands in the tree."""
    if file.old_path is None or file.new_path is None or file.binary or not file.hunks:
        return [_whole(file, target)]
    data = target.read(file.path)
    if data is None or (file.old_path != file.new_path and target.read(file.old_path) is not None):
        return [_part(file, n, hunk, "conflicts") for n, hunk in enumerate(file.hunks, 1)]
    found = hunkfind.states(file.hunks, hunkfind.lines_of(data))
    return [
        _part(file, n, hunk, one.state, f"line {one.line}" if one.line else "")
        for n, (hunk, one) in enumerate(zip(file.hunks, found, strict=True), 1)
    ]


def _part(file: FileDiff, number: int, hunk: Hunk, state: State, where: str = "") -> Part:
    return Part(path=file.path, number=number, title=hunk.section.strip(), state=state, where=where)


def _whole(file: FileDiff, target: Readable) -> Part:
    """A file that the change adds, deletes, renames, replaces whole, or whose mode it changes."""
    return Part(path=file.path, number=0, title=_doing(file), state=_whole_state(file, target))


def _doing(file: FileDiff) -> str:
    if file.old_path is None:
        return "new"
    if file.new_path is None:
        return "deleted"
    return "renamed" if file.old_path != file.new_path else "mode" if not file.binary else "binary"


def _whole_state(file: FileDiff, target: Readable) -> State:
    data = target.read(file.path)
    if file.new_path is None:
        return "upstream" if data is None and not _moved(file, target) else "applies"
    if data is None:
        return "applies" if file.old_path is None else "conflicts"
    if file.old_path is None and not file.binary:
        wanted = "".join(line for hunk in file.hunks for line in hunk.after)
        same = data == wanted.encode("utf-8", "surrogateescape")
        return "upstream" if same else "conflicts"
    return _blob_state(file, data, target)


def _blob_state(file: FileDiff, data: bytes, target: Readable) -> State:
    """A whole file by the id of its blob, where the diff states one; and by its mode."""
    mode = getattr(target, "mode", lambda path: file.old_mode)(file.path)
    oid = blob_id(data)
    if file.new_blob and not oid.startswith(file.new_blob):
        return "applies" if file.old_blob and oid.startswith(file.old_blob) else "conflicts"
    if file.old_path != file.new_path and target.read(file.old_path or "") is not None:
        return "applies"
    changes = file.new_blob or file.old_path != file.new_path or file.old_mode != file.new_mode
    return "upstream" if changes and mode == (file.new_mode or mode) else "applies"


def _moved(file: FileDiff, target: Readable) -> bool:
    """Whether a file that is gone was only given another place."""
    name = PurePosixPath(file.path).name
    wanted = "".join(line for hunk in file.hunks for line in hunk.before)
    data = wanted.encode("utf-8", "surrogateescape")
    return bool(data) and any(
        target.read(path) == data for path in target.paths() if PurePosixPath(path).name == name
    )
