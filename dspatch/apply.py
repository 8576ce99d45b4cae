"""Series + Checkout -> PatchedTree: all patches or none, one commit a patch, the same tree every time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import diffs, edits, paths, render, treefiles
from dspatch.checkout import Checkout, cache_of
from dspatch.errors import DspatchError, PatchConflictError
from dspatch.files import write_atomically
from dspatch.git import Change, NewCommit, Repo
from dspatch.series import EditSpec, NewFile, Patch, Planned, Series, digest_of, holds
from dspatch.traits import Traits
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from dspatch.variants import Variant

# The modules whose code decides what a patched tree looks like.
_CODE = ("apply", "astfind", "diffs", "edits", "git", "render", "series", "traits")


@dataclass(frozen=True, kw_only=True)
class AppliedPatch:
    """A patch as it was applied: its content by hash, its commit, and what it changed."""

    name: str
    subject: str
    sha256: str
    commit: str
    upstream: str
    paths: tuple[str, ...]
    statistics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """A checkout with the series on top: one commit a patch."""

    checkout: Checkout
    commit: str
    tree: str
    plan: tuple[Planned, ...]
    patches: tuple[AppliedPatch, ...]

    def diff(self, patch: AppliedPatch) -> str:
        """What one patch changed, as a diff that `git apply` takes."""
        return self.checkout.repo.diff(f"{patch.commit}^", patch.commit)


def apply_series(
    series: Series, checkout: Checkout, *, target: str, variants: Sequence[Variant]
) -> PatchedTree:
    """Render and apply the patches that this checkout needs; nothing but git objects is written.

    The result is kept by the hash of all that it depends on. Raises `PatchConflictError` that names
    every patch that does not apply.
    """
    memory = paths.cache() / "applied" / f"{_inputs(series, checkout, target, variants)}.json"
    kept = _recall(memory, series, checkout)
    if kept is not None:
        return kept
    tree = _apply(series, checkout, target, variants)
    _remember(memory, tree)
    return tree


def _apply(
    series: Series, checkout: Checkout, target: str, variants: Sequence[Variant]
) -> PatchedTree:
    files = treefiles.of_tree(checkout.repo, checkout.tree)
    facts = Traits(series.traits, files.read)
    plan = series.plan(facts, target, [variant.families for variant in variants])
    context = render.Context(traits=facts, variants=variants)
    chosen = [item.patch for item in plan if item.applies]
    commits = _commits(series, chosen, files, context, checkout)
    with cache_of(checkout.engine) as repo:
        ids = repo.write_commits("refs/applying", checkout.commit, commits) if commits else []
        head = ids[-1] if ids else checkout.commit
        tree = repo.resolve(f"{head}^{{tree}}") or ""
        # A ref of its own keeps the commits alive for as long as somebody may want this tree.
        repo.set_ref(f"refs/patched/{head}", head)
    applied = tuple(
        _applied(series, repo, patch, oid, commit)
        for patch, oid, commit in zip(chosen, ids, commits, strict=True)
    )
    return PatchedTree(checkout=checkout, commit=head, tree=tree, plan=plan, patches=applied)


def _inputs(series: Series, checkout: Checkout, target: str, variants: Sequence[Variant]) -> str:
    """One hash over everything that the patched tree is a function of, dspatch's own code included."""
    code = [paths.PACKAGE / f"{name}.py" for name in _CODE]
    models = [f"{variant.name} {variant!r}" for variant in variants]
    inputs = [checkout.commit, series.digest, target, models, digest_of(code)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def _remember(memory: Path, tree: PatchedTree) -> None:
    content = {
        "commit": tree.commit,
        "tree": tree.tree,
        "plan": [(item.patch.name, item.status, item.why) for item in tree.plan],
        "patches": [asdict(patch) for patch in tree.patches],
    }
    write_atomically(memory, json.dumps(content).encode())


def _recall(memory: Path, series: Series, checkout: Checkout) -> PatchedTree | None:
    """The tree that the same inputs gave before, provided that git still holds it."""
    try:
        content = json.loads(memory.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if checkout.repo.resolve(f"{content['commit']}^{{tree}}") != content["tree"]:
        return None
    return PatchedTree(
        checkout=checkout,
        commit=content["commit"],
        tree=content["tree"],
        plan=tuple(
            Planned(patch=series.patch(name), status=status, why=why)
            for name, status, why in content["plan"]
        ),
        patches=tuple(
            AppliedPatch(**{**patch, "paths": tuple(patch["paths"])})
            for patch in content["patches"]
        ),
    )


def _applied(series: Series, repo: Repo, patch: Patch, oid: str, commit: NewCommit) -> AppliedPatch:
    return AppliedPatch(
        name=patch.name,
        subject=patch.subject,
        sha256=series.patch_digest(patch),
        commit=oid,
        upstream=patch.upstream,
        paths=tuple(change.path for change in commit.changes),
        statistics=diffs.statistics(repo.diff(f"{oid}^", oid)),
    )


def _commits(
    series: Series,
    patches: Sequence[Patch],
    files: Files,
    context: render.Context,
    checkout: Checkout,
) -> list[NewCommit]:
    commits: list[NewCommit] = []
    failures: list[tuple[Patch, DspatchError]] = []
    for patch in patches:
        try:
            changes = _changes(series, patch, files, context)
        except DspatchError as error:
            failures.append((patch, error))
            continue
        files = files.with_changes(changes)
        ordered = tuple(changes[path] for path in sorted(changes))
        commits.append(NewCommit(message=patch.message, changes=ordered))
    if failures:
        raise _conflict(checkout, failures)
    return commits


def _conflict(checkout: Checkout, failures: Sequence[tuple[Patch, DspatchError]]) -> DspatchError:
    if len({type(error) for _, error in failures}) == 1 and failures[0][1].exit_code == 32:
        return failures[0][1]
    names = ", ".join(patch.name for patch, _ in failures)
    details = "\n        ".join(
        f"{patch.name}: {error.what}" + (f" ({error.why})" if error.why else "")
        for patch, error in failures
    )
    return PatchConflictError(
        f"{checkout.engine} {checkout.rev}: {names} cannot be applied, so nothing was.",
        why=details,
        next=f"dspatch patch show {failures[0][0].name}",
    )


def _changes(
    series: Series, patch: Patch, files: Files, context: render.Context
) -> dict[str, Change]:
    """What one patch does to the tree as the patches before it left it."""
    changes: dict[str, Change] = {}
    for new in patch.files:
        if holds(new.when, context.traits) is None:
            changes[new.path] = _new_file(series, new, files, context)
    for spec in patch.edits:
        if holds(spec.when, context.traits) is None:
            changes[spec.file] = _edited(series, patch, spec, files.with_changes(changes), context)
    return changes


def _new_file(series: Series, new: NewFile, files: Files, context: render.Context) -> Change:
    if files.read(new.path) is not None:
        raise PatchConflictError(
            f"{new.path} is there already.",
            why="a patch renders files that upstream does not have; an edit changes those it has",
        )
    return Change(path=new.path, data=render.render_file(series.templates, new.template, context))


def _edited(
    series: Series, patch: Patch, spec: EditSpec, files: Files, context: render.Context
) -> Change:
    source = files.read(spec.file)
    if source is None:
        raise PatchConflictError(
            f"{spec.file} does not exist.", why=_nearest_file(spec.file, files)
        )
    where = str(Path(patch.name) / "patch.toml")
    edit = edits.Edit(
        file=spec.file,
        verb=spec.verb,
        symbol=spec.symbol,
        find=spec.find,
        text=render.render_text(series.templates, where, spec.text, context),
    )
    return Change(path=spec.file, data=edits.apply_edit(source, edit), mode=files.mode(spec.file))


def _nearest_file(path: str, files: Files) -> str:
    name = Path(path).name
    same = [p for p in files.paths() if Path(p).name == name and p.endswith(".py")]
    return (
        f"nearest found: {', '.join(sorted(same)[:3])}" if same else "no file of that name is there"
    )
