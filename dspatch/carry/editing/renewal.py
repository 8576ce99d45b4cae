"""What was made of each patch in a job's tree, taken into its folder: words, sources, forms, new patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import apply, git, paths, strictly, treefiles
from dspatch.carry.editing import formfile, layer, takeback
from dspatch.carry.editing.chain import Part
from dspatch.carry.editing.editedtree import EditedTree
from dspatch.carry.editing.layer import Draft
from dspatch.carry.exchange import projection
from dspatch.carry.exchange.mail import PatchMail, text
from dspatch.git import Change
from dspatch.onto import Place, recorded_form
from dspatch.patchfile import FORM_SUFFIX, Patch
from dspatch.traits import Traits
from dspatch.variants import Variant

# Gives the reason of a new patch whose commit does not say it.
Ask = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """What became of one patch: the sources that changed, and the files that only a form gives."""

    name: str
    new: bool = False
    sources: tuple[Path, ...] = ()
    form: Path | None = None
    kept_as_form: tuple[str, ...] = ()


def take_in(
    tree: EditedTree,
    draft: Draft,
    parts: Sequence[Part],
    ask: Ask,
    *,
    target: str,
    variants: Sequence[Variant],
) -> tuple[Renewed, ...]:
    """Bring the draft to what the parts of a tree say; returns the patches that changed."""
    place = _place(tree, target, variants)
    commits = {patch.name: patch.commit for patch in tree.patched.patches}
    renewed: list[Renewed] = []
    for part in parts:
        if part.name in commits:
            untouched = [link.commit for link in part.links] == [commits[part.name]]
            if not (untouched and part.before == part.head.before):
                renewed += _renewed(tree, draft, part, tree.series.patch(part.name), place)
        elif part.before != part.after:
            names = [patch.name for patch in tree.series.patches] + [one.name for one in renewed]
            renewed.append(_new(tree, draft, part, names, ask))
    return tuple(renewed)


def _place(tree: EditedTree, target: str, variants: Sequence[Variant]) -> Place:
    found = tree.patched.checkout
    facts = Traits(tree.series.traits, treefiles.of_tree(found.repo, found.tree).read)
    place = apply.place_of(tree.series, found, facts, target=target, variants=variants)
    # The tree's own repository has the cache's objects, and what was edited besides.
    return replace(place, repo=tree.repo)


def _renewed(
    tree: EditedTree, draft: Draft, part: Part, patch: Patch, place: Place
) -> list[Renewed]:
    said = _said_anew(draft, part, patch)
    files = treefiles.of_tree(tree.repo, part.before)
    wanted = _wanted(tree.repo, part)
    if said:
        layer.refuse_installed(patch)
        draft.changes.update(said)
    if takeback.gives(patch, files, place, wanted):
        return [Renewed(name=patch.name, sources=tuple(said))] if said else []
    recorded = recorded_form(patch, place)
    taken = takeback.TakenBack(left=tuple(sorted(wanted)))
    if patch.renders and recorded is None and not paths.is_installed(patch.folder):
        taken = takeback.into_sources(draft, patch, files, place, wanted)
    form = None
    if taken.left:
        made_on = recorded.made_on if recorded else tree.made_on
        form = formfile.path(patch, draft.engine, made_on)
        if recorded and not paths.is_installed(recorded.path):
            form = recorded.path
        draft.changes[form] = _diff(tree.repo, part)
    kept = taken.left if patch.renders else ()
    sources = tuple(dict.fromkeys([*said, *taken.sources]))
    return [Renewed(name=patch.name, sources=sources, form=form, kept_as_form=kept)]


def _said_anew(draft: Draft, part: Part, patch: Patch) -> dict[Path, bytes]:
    """patch.toml with what the commit's message says now, when somebody reworded it."""
    head = part.head
    fields = dict(head.fields)
    now = {
        "subject": (head.subject, patch.subject),
        "reason": (head.body, patch.reason),
        "upstream": (fields.get("Upstream", ""), patch.upstream),
        "drop-when": (fields.get("Drop-when", ""), patch.drop_when),
    }
    changed = {
        key: new for key, (new, old) in now.items() if new.split() != old.split() and new.strip()
    }
    if not changed or not head.first:
        return {}
    path = patch.folder / "patch.toml"
    return {path: projection.updated(draft.read(path) or b"", keys=changed)}


def _new(tree: EditedTree, draft: Draft, part: Part, names: Sequence[str], ask: Ask) -> Renewed:
    head = part.head
    reason = text(head.body) or ask(head.subject)
    mail = PatchMail(subject=head.subject, body=reason, fields=head.fields, diff="")
    name = projection.name_of(mail, names)
    written_for = tree.made_on if tree.made_on == tree.patched.checkout.rev else None
    toml = projection.toml(projection.as_table(mail, written_for=written_for))
    form = f"{tree.made_on}{FORM_SUFFIX}"
    draft.add(name, {"patch.toml": toml, form: _diff(tree.repo, part)})
    return Renewed(name=name, new=True, form=draft.own / name / form)


def _wanted(repo: git.Repo, part: Part) -> dict[str, Change]:
    return strictly.difference(repo, repo.entries(part.before), repo.entries(part.after))


def _diff(repo: git.Repo, part: Part) -> bytes:
    return repo.diff(part.before, part.after).encode("utf-8", "surrogateescape")
