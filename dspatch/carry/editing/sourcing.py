"""A change of rendered bytes taken back into what they are rendered from: a template, or the texts of edits."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from dspatch import edits
from dspatch.carry.upstreamed import editstate
from dspatch.git import Repo
from dspatch.onto import rendered_edit
from dspatch.patchfile import Patch, holds
from dspatch.render import Context


@dataclass(frozen=True, kw_only=True)
class _Laid:
    """An edit's text in the finished file: its bytes, and whether another edit changed them after."""

    index: int
    text: str
    place: edits.Placed
    start: int
    end: int
    overlaid: bool = False


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Bytes of the finished file that are to become others."""

    start: int
    end: int
    data: bytes


def template_of(repo: Repo, template: bytes, rendered: bytes, wanted: bytes) -> bytes | None:
    """The template with the change from `rendered` to `wanted`, `None` where it computes those lines."""
    merged = repo.merge_files(base=rendered, ours=template, theirs=wanted)
    return _by_lines(template, rendered, wanted) if merged is None else merged


def _by_lines(template: bytes, rendered: bytes, wanted: bytes) -> bytes | None:
    """The same line by line: a merge gives up where a computed line stands right beside a changed one."""
    for change in reversed(list(_changes(rendered, wanted))):
        old, start, end = rendered[change.start : change.end], change.start, change.end
        if not old:  # put in: between the line before and what follows it
            start = rendered.rfind(b"\n", 0, max(start - 1, 0)) + 1
            old = rendered[start : change.start]
        new = rendered[start : change.start] + change.data + rendered[change.end : end]
        if not old or template.count(old) != 1:
            return None
        template = template.replace(old, new)
    return template


def edit_texts(
    patch: Patch, file: str, source: bytes, wanted: bytes, context: Context, repo: Repo
) -> dict[int, str] | None:
    """New texts for the edits of a file, by their number in patch.toml, so that it becomes `wanted`.

    `None` when something changed that no edit's text covers.
    """
    finished, laid = _laid(patch, file, source, context)
    mine: dict[int, list[_Change]] = {}
    for change in _changes(finished, wanted):
        owner = next((each for each in laid if _covers(each, change, finished)), None)
        if owner is None or owner.overlaid:
            return None
        mine.setdefault(owner.index, []).append(change)
    texts: dict[int, str] = {}
    for each in laid:
        if each.index in mine:
            text = _text(each, finished, mine[each.index])
            text = None if text is None else _through(repo, patch, each, text)
            if text is None:
                return None
            texts[each.index] = text
    return texts


def _laid(patch: Patch, file: str, source: bytes, context: Context) -> tuple[bytes, list[_Laid]]:
    """The finished file, and where each edit's text lies in it."""
    found: list[_Laid] = []
    for index, spec in enumerate(patch.edits):
        if spec.file != file or holds(spec.when, context.traits) is not None:
            continue
        edit = rendered_edit(patch, spec, context)
        if editstate.made_at(source, edit) is not None:
            continue
        place = edits.placed(source, edit)
        found = [_shifted(each, place) for each in found]
        end = place.start + len(place.text)
        found.append(_Laid(index=index, text=edit.text, place=place, start=place.start, end=end))
        source = edits.apply_edit(source, edit)
    return source, found


def _shifted(laid: _Laid, later: edits.Placed) -> _Laid:
    """Where a text lies after a later edit."""
    by = len(later.text) - (later.end - later.start)
    if later.end <= laid.start:
        return replace(laid, start=laid.start + by, end=laid.end + by)
    if later.start >= laid.end:
        return laid
    return replace(laid, end=laid.end + by, overlaid=True)


def _changes(old: bytes, new: bytes) -> Iterator[_Change]:
    """Whole lines that differ, as few as can be told."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    starts = [0, *accumulate(len(line) for line in before)]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            yield _Change(start=starts[a], end=starts[b], data=b"".join(after[c:d]))


def _covers(laid: _Laid, change: _Change, finished: bytes) -> bool:
    start, end = _lines_around(laid, finished)
    return start <= change.start and change.end <= end


def _lines_around(laid: _Laid, finished: bytes) -> tuple[int, int]:
    """The whole lines that a text lies on."""
    if laid.place.whole_lines:
        return laid.start, laid.end
    end = finished.find(b"\n", laid.end)
    return finished.rfind(b"\n", 0, laid.start) + 1, len(finished) if end < 0 else end + 1


def _text(laid: _Laid, finished: bytes, changes: Sequence[_Change]) -> str | None:
    """The text of an edit after changes of the lines it lies on, as patch.toml would have it."""
    start, end = _lines_around(laid, finished)
    region, at = b"", start
    for change in changes:
        region += finished[at : change.start] + change.data
        at = change.end
    region += finished[at:end]
    before, behind = finished[start : laid.start], finished[laid.end : end]
    if not (region.startswith(before) and region.endswith(behind)):
        return None
    body = region[len(before) : len(region) - len(behind)].decode("utf-8", "surrogateescape")
    return _unindented(body.replace("\r\n", "\n"), laid)


def _unindented(body: str, laid: _Laid) -> str | None:
    indent = laid.place.indent.decode()
    lines = body.removesuffix("\n").split("\n") if body else []
    first = 0 if laid.place.whole_lines else 1
    for number, line in enumerate(lines[first:], first):
        if line.strip() and not line.startswith(indent):
            return None
        lines[number] = line.removeprefix(indent) if line.strip() else ""
    ending = "\n" if lines and laid.text.endswith("\n") else ""
    return "\n".join(lines) + ending


def _through(repo: Repo, patch: Patch, laid: _Laid, text: str) -> str | None:
    """The text as patch.toml's own: merged where that is a template."""
    own = patch.edits[laid.index].text
    if own == laid.text:
        return text
    merged = repo.merge_files(laid.text.encode(), own.encode(), text.encode())
    return None if merged is None else merged.decode()
