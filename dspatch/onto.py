"""One patch onto one tree: its recorded form for this revision, else rendered, else its nearest form three-way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from dspatch import diffs, edits, render, threeway
from dspatch.carry.upstreamed import already, editstate
from dspatch.carry.upstreamed.parts import Search
from dspatch.errors import EditError, PatchConflictError
from dspatch.git import Change, Repo
from dspatch.patchfile import EditSpec, Form, NewFile, Patch, holds
from dspatch.pins.lookup import same
from dspatch.threeway import Labels, MergeConflictError, Outcome
from dspatch.treefiles import Files


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where patches are put: the revision, git's objects, and what templates may ask of it.

    `revision` is what git calls it where it is no release, only nearest to `rev`.
    `provide` fetches the tree that a form was made on, says whether it could, and is not asked
    before a merge needs it; `base_paths` are the paths of that tree, where it is at hand; `search` gives
    the files of the new one that hold a word, for code that moved.
    """

    engine: str
    rev: str
    commit: str
    repo: Repo
    context: render.Context
    revision: str | None = None
    provide: Callable[[Patch, Form], bool] = lambda patch, form: False
    base_paths: Callable[[Patch, Form], Collection[str]] = lambda patch, form: ()
    search: Search | None = None


def change_of(patch: Patch, files: Files, place: Place) -> Outcome:
    """What a patch does to a tree, as the patches before it left it.

    Raises `PatchConflictError` (`MergeConflictError` where a diff was merged), `EditError` and
    `TemplateError`.
    """
    recorded = recorded_form(patch, place)
    if recorded is not None:
        return from_form(patch, recorded, files, place)
    if not patch.renders:
        return _from_forms(patch, files, place)
    try:
        return render_onto(patch, files, place.context)
    except (EditError, PatchConflictError):
        if not patch.forms:
            raise
    return _from_forms(patch, files, place)


# -- rendered ----------------------------------------------------------------------------------


def render_onto(patch: Patch, files: Files, context: render.Context) -> Outcome:
    """What the templates and edits of a patch do to a tree; what upstream has already is not done again."""
    changes: dict[str, Change] = {}
    there: list[str] = []
    patch = patch.placed(context.traits)
    wanted_files = [new for new in patch.files if holds(new.when, context.traits) is None]
    wanted_edits = [spec for spec in patch.edits if holds(spec.when, context.traits) is None]
    for new in wanted_files:
        data = render.render_file(patch.templates, new.template, context)
        if files.read(new.path) == data:
            there.append(new.path)
        else:
            changes[new.path] = _new_file(new, data, files)
    for spec in wanted_edits:
        edit = rendered_edit(patch, spec, context)
        line = editstate.made_at(files.read(spec.file), edit)
        if line is not None:
            there.append(f"{spec.file}, line {line}")
        else:
            changes[spec.file] = _edited(edit, files.with_changes(changes))
    note = f"{len(there)} of {len(wanted_files) + len(wanted_edits)} edits upstream: {'; '.join(there)}"
    if there and not changes:
        return Outcome(how="upstream", changes={}, note=note)
    return Outcome(how="rendered", changes=changes, note=note if there else "")


def rendered(patch: Patch, files: Files, context: render.Context) -> dict[str, Change]:
    """What the templates and edits of a patch change in a tree."""
    return dict(render_onto(patch, files, context).changes)


def _new_file(new: NewFile, data: bytes, files: Files) -> Change:
    if files.has(new.path):
        raise PatchConflictError(
            f"{new.path} is there already.",
            why="a patch renders files that upstream does not have; an edit changes those it has",
        )
    return Change(path=new.path, data=data)


def _edited(edit: edits.Edit, files: Files) -> Change:
    source = files.read(edit.file)
    if source is None:
        raise PatchConflictError(
            f"{edit.file} does not exist.", why=_nearest_file(edit.file, files)
        )
    return Change(path=edit.file, data=edits.apply_edit(source, edit), mode=files.mode(edit.file))


def rendered_edit(patch: Patch, spec: EditSpec, context: render.Context) -> edits.Edit:
    """An edit with its text rendered."""
    where = str(Path(patch.name) / "patch.toml")
    return edits.Edit(
        file=spec.file,
        verb=spec.verb,
        symbol=spec.symbol,
        find=spec.find,
        text=render.render_text(patch.templates, where, spec.text, context),
    )


def _nearest_file(path: str, files: Files) -> str:
    name = Path(path).name
    same_name = [p for p in files.paths() if Path(p).name == name and p.endswith(".py")]
    return (
        f"nearest found: {', '.join(sorted(same_name)[:3])}"
        if same_name
        else "no file of that name is there"
    )


# -- forms -------------------------------------------------------------------------------------


def recorded_form(patch: Patch, place: Place) -> Form | None:
    """The form made on exactly this revision."""
    for form in patch.forms:
        is_release = place.revision is None and same(form.made_on, place.rev)
        if is_release or form.made_on == place.commit:
            return form
    return None


def by_nearness(forms: Sequence[Form], rev: str) -> list[Form]:
    """Forms in the order to try: the newest made on an older release first, then newer ones upwards.

    Those made on a commit that is no release come last.
    """
    target = _version(rev)

    def distance(form: Form) -> tuple[int, int, Version]:
        made_on = _version(form.made_on)
        if made_on is None or target is None:
            return (2, 0, Version("0"))
        return (0, 0, made_on) if made_on <= target else (1, 0, made_on)

    older = [form for form in forms if distance(form)[0] == 0]
    others = [form for form in forms if distance(form)[0] != 0]
    return [
        *sorted(older, key=lambda form: distance(form)[2], reverse=True),
        *sorted(others, key=distance),
    ]


def from_form(patch: Patch, form: Form, files: Files, place: Place) -> Outcome:
    """What one form of a patch does to a tree, strictly or merged, unless the tree has it already."""
    diff = form.diff  # read from its file each time
    parts = diffs.read(diff)
    if not parts:
        note = f"nothing of it is left to do on {form.made_on}, as its empty form says"
        return Outcome(how="upstream", changes={}, note=note)

    def settle() -> Outcome | None:
        return already.outcome(place.repo, diff, files, place.search)

    looked = already.inserts_again(parts, files)
    if looked and (there := settle()):
        return there
    try:
        return threeway.apply_diff(
            place.repo,
            diff,
            files,
            context=patch.fuzz.context if patch.fuzz else None,
            provide=lambda: place.provide(patch, form),
            base_paths=lambda: place.base_paths(patch, form),
            labels=Labels(
                base=f"{place.engine} {form.made_on}",
                ours=f"{place.engine} {place.revision or place.rev}",
                theirs=patch.name,
            ),
            settle=(lambda: None) if looked else settle,
        )
    except MergeConflictError as error:
        # By now git may hold the files that the form was made on, and code can be compared.
        verdict = already.judge(place.repo, diff, files, place.search)
        if (there := already.settled(place.repo, diff, files, verdict)) is not None:
            return there
        raise already.told(error, verdict) from None


def _from_forms(patch: Patch, files: Files, place: Place) -> Outcome:
    """The first form that applies, the nearest first; the error of the nearest when none does."""
    first: PatchConflictError | None = None
    for form in by_nearness(patch.forms, place.rev):
        try:
            return from_form(patch, form, files, place)
        except PatchConflictError as error:
            first = first or error
    assert first is not None, f"{patch.name} has no form"
    raise first


def _version(rev: str) -> Version | None:
    try:
        return Version(rev)
    except InvalidVersion:
        return None
