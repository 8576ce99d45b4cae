"""A patch brought to what its commit has become: its templates and edits where they can say it, else a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dspatch import onto
from dspatch.carry.editing import sourcing
from dspatch.carry.editing.layer import Draft
from dspatch.carry.exchange import projection
from dspatch.errors import DspatchError
from dspatch.git import Change
from dspatch.onto import Place
from dspatch.patchfile import Patch
from dspatch.treefiles import Files

Wanted = Mapping[str, Change]


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """Which files of a change the sources now give, and which are kept as a form only."""

    sources: tuple[Path, ...] = ()
    left: tuple[str, ...] = ()


def gives(patch: Patch, files: Files, place: Place, wanted: Wanted) -> bool:
    """Whether a patch as it is changes a tree in just this way."""
    try:
        return _real(onto.change_of(patch, files, place).changes, files) == dict(wanted)
    except DspatchError:
        return False


def into_sources(
    draft: Draft, patch: Patch, files: Files, place: Place, wanted: Wanted
) -> TakenBack:
    """Change templates and edit texts in the draft so that they render what is wanted.

    A file counts only when rendering it again gives exactly its bytes; the rest is `left`.
    """
    try:
        patch = patch.placed(place.context.traits)
        have = _real(onto.rendered(patch, files, place.context), files)
    except DspatchError:
        return TakenBack(left=tuple(sorted(wanted)))
    paths = {*have, *wanted}
    changed = {path for path in paths if have.get(path) != wanted.get(path)}
    ideas = {path: _idea(draft, patch, files, place, have, wanted, path) for path in changed}
    tried = {path: idea for path, idea in ideas.items() if idea is not None}
    while tried:
        sources = _sources(draft, patch, tried.values())
        right = _right(draft, patch, files, place, sources, wanted)
        if right >= (paths - changed) | tried.keys():
            draft.changes.update(sources)
            return TakenBack(sources=tuple(sorted(sources)), left=tuple(sorted(changed - right)))
        kept = {path: idea for path, idea in tried.items() if path in right}
        tried = kept if len(kept) < len(tried) else {}
    return TakenBack(left=tuple(sorted(changed)))


@dataclass(frozen=True, kw_only=True)
class _Idea:
    """New sources for one file of the tree, which may or may not render right."""

    templates: Mapping[Path, bytes] = field(default_factory=dict)
    texts: Mapping[int, str] = field(default_factory=dict)


def _idea(
    draft: Draft,
    patch: Patch,
    files: Files,
    place: Place,
    have: Wanted,
    wanted: Wanted,
    path: str,
) -> _Idea | None:
    old, new = have.get(path), wanted.get(path)
    if old is None or new is None or old.data is None or new.data is None or old.mode != new.mode:
        return None
    for file in patch.files:
        if file.path == path:
            template = patch.templates / file.template
            source = draft.read(template) or b""
            merged = sourcing.template_of(place.repo, source, old.data, new.data)
            return None if merged is None else _Idea(templates={template: merged})
    before = files.read(path) or b""
    texts = sourcing.edit_texts(patch, path, before, new.data, place.context, place.repo)
    return _Idea(texts=texts) if texts else None


def _sources(draft: Draft, patch: Patch, ideas: Collection[_Idea]) -> dict[Path, bytes | None]:
    found: dict[Path, bytes | None] = {}
    texts: dict[int, str] = {}
    for idea in ideas:
        found.update(idea.templates)
        texts.update(idea.texts)
    toml = patch.folder / "patch.toml"
    if texts:
        found[toml] = projection.updated(draft.read(toml) or b"", texts=texts)
    return found


def _right(
    draft: Draft,
    patch: Patch,
    files: Files,
    place: Place,
    sources: Mapping[Path, bytes | None],
    wanted: Wanted,
) -> set[str]:
    """The files that the patch, read anew from changed sources, renders as they are wanted."""
    changed = Draft(engine=draft.engine, changes={**draft.changes, **sources})
    try:
        with changed.tried() as series:
            now = onto.rendered(series.patch(patch.name), files, place.context)
    except DspatchError:
        return set()
    now = _real(now, files)
    return {path for path in {*now, *wanted} if now.get(path) == wanted.get(path)}


def _real(changes: Wanted, files: Files) -> dict[str, Change]:
    """Changes without those that leave a file as it is."""
    return {
        path: change
        for path, change in changes.items()
        if (change.data, change.mode) != (files.read(path), files.mode(path))
    }
