"""Series + Checkout -> PatchedTree: all patches or none, one commit a patch, the same tree every time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch import batch, diffs, leftout, paths, render, treefiles
from dspatch.bases import Bases
from dspatch.batch import Result
from dspatch.carry.uses import usesfile
from dspatch.checkout import Checkout, cache_of
from dspatch.errors import DspatchError, PatchConflictError, TemplateError
from dspatch.files import write_atomically
from dspatch.git import NewCommit, Repo
from dspatch.onto import Place
from dspatch.pins.lookup import same
from dspatch.series import Patch, Planned, Series, digest_of
from dspatch.threeway import How, MergeConflictError
from dspatch.traits import Traits
from dspatch.treefiles import Files

if TYPE_CHECKING:
    from dspatch.variants import Variant

# The code that decides what a patched tree looks like.
CODE = tuple(
    Path(__file__).parent / name
    for name in (
        "apply.py", "astfind.py", "batch.py", "diffhead.py", "difflines.py", "diffs.py", "edits.py",
        "git.py", "onto.py", "patchfile.py", "render.py", "series.py", "strictly.py", "syntax.py", "threeway.py",
        "traits.py", "treefiles.py", "carry/upstreamed", "carry/uses",
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AppliedPatch:
    """A patch as it was applied: its content by hash, its commit, how it came on, where, what it changed."""

    name: str
    subject: str
    sha256: str
    commit: str
    how: How
    upstream: str
    paths: tuple[str, ...]
    package: str
    statistics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """A checkout with the series on top: one commit a patch."""

    checkout: Checkout
    commit: str
    tree: str
    plan: tuple[Planned, ...]
    patches: tuple[AppliedPatch, ...]

    def applied(self, name: str) -> AppliedPatch | None:
        """A patch of that name, where it was applied."""
        return next((patch for patch in self.patches if patch.name == name), None)

    def diff(self, patch: AppliedPatch) -> str:
        """What one patch changed, as a diff that `git apply` takes."""
        return self.checkout.repo.diff(f"{patch.commit}^", patch.commit)


def apply_series(
    series: Series,
    checkout: Checkout,
    *,
    target: str,
    variants: Sequence[Variant],
    guarded: bool = True,
) -> PatchedTree:
    """Render and apply the patches that this checkout needs; nothing but git objects is written.

    The result is kept by the hash of all that it depends on. Raises `PatchConflictError` that names
    every patch that does not apply, and, if `guarded`, `SignatureDriftError` that tells every
    upstream symbol which is not what a patch was written for.
    """
    inputs = _inputs(series, checkout, target, variants, guarded)
    memory = paths.cache() / "applied" / f"{inputs}.json"
    kept = _recall(memory, series, checkout)
    if kept is not None:
        return kept
    tree = _apply(series, checkout, target, variants, guarded)
    _remember(memory, tree)
    return tree


def _apply(
    series: Series, checkout: Checkout, target: str, variants: Sequence[Variant], guarded: bool
) -> PatchedTree:
    with checkout.repo.reading():
        files = treefiles.of_tree(checkout.repo, checkout.tree)
        facts = Traits(series.traits, files.read)
        plan = series.plan(facts, target, [variant.families for variant in variants])
        place = place_of(series, checkout, facts, target=target, variants=variants)
        chosen = [item.patch for item in plan if item.applies]
        results = list(batch.changes_of(chosen, files, place))
        failed = [result for result in results if result.error is not None]
        if failed:
            raise _conflict(checkout, series, failed, results)
        done = [result for result in results if _how(result) != "upstream"]
        if guarded:
            _guard(checkout, series, done, files)
    ids = write(checkout, done)
    head = ids[-1] if ids else checkout.commit
    return PatchedTree(
        checkout=checkout,
        commit=head,
        tree=checkout.repo.resolve(f"{head}^{{tree}}") or "",
        plan=tuple(_settled(item, results) for item in plan),
        patches=_applied_patches(series, checkout.repo, done, ids),
    )


def _guard(checkout: Checkout, series: Series, results: Sequence[Result], files: Files) -> None:
    # A tree that is kept already was judged when it was made; it needs none of this code.
    from dspatch.carry.uses import guard

    patches = [result.patch for result in results]
    where = f"{checkout.engine} {checkout.rev}"
    guard.check(where, patches, batch.after(files, results), series.traits)


def place_of(
    series: Series,
    checkout: Checkout,
    facts: Traits,
    *,
    target: str,
    variants: Sequence[Variant],
) -> Place:
    """A checkout as the place where patches of a series are put."""
    bases = Bases(series=series, target=target, variants=variants)
    return Place(
        engine=checkout.engine,
        rev=checkout.rev,
        revision=checkout.revision,
        commit=checkout.commit,
        repo=checkout.repo,
        context=render.Context(traits=facts, variants=variants, format=series.format),
        provide=lambda patch, form: bases.provide(patch, form, checkout.repo),
        base_paths=lambda patch, form: bases.paths(form, checkout.repo),
        search=lambda word: checkout.repo.grep(checkout.tree, word, "*.py"),
    )


def _how(result: Result) -> How:
    assert result.outcome is not None
    return result.outcome.how


def write(checkout: Checkout, results: Sequence[Result]) -> list[str]:
    """Write outcomes as one commit a patch; a ref of its own keeps them for as long as somebody may want this tree."""
    commits = [
        NewCommit(
            message=result.patch.message,
            changes=tuple(change for _, change in sorted(result.outcome.changes.items())),
        )
        for result in results
        if result.outcome is not None
    ]
    with cache_of(checkout.engine) as repo:
        ids = repo.write_commits("refs/applying", checkout.commit, commits) if commits else []
        head = ids[-1] if ids else checkout.commit
        repo.set_ref(f"refs/patched/{head}", head)
    return ids


def _settled(item: Planned, results: Sequence[Result]) -> Planned:
    """A planned patch after the series was tried: one that upstream has already leaves it."""
    outcome = next((result.outcome for result in results if result.patch is item.patch), None)
    if outcome is None:
        return item
    if outcome.how == "upstream":
        why = outcome.note or "upstream has it already: its diff merges to no change"
        return Planned(patch=item.patch, status="upstream", why=why)
    return Planned(patch=item.patch, status=item.status, why=outcome.note or item.why)


def _applied_patches(
    series: Series, repo: Repo, results: Sequence[Result], ids: Sequence[str]
) -> tuple[AppliedPatch, ...]:
    texts = repo.diffs(ids) if ids else []
    return tuple(
        AppliedPatch(
            name=result.patch.name,
            subject=result.patch.subject,
            sha256=series.patch_digest(result.patch),
            commit=oid,
            how=_how(result),
            upstream=result.patch.upstream,
            paths=tuple(sorted(result.outcome.changes if result.outcome else ())),
            package=result.patch.package,
            statistics=diffs.statistics(text),
        )
        for result, oid, text in zip(results, ids, texts, strict=True)
    )


def _inputs(
    series: Series, checkout: Checkout, target: str, variants: Sequence[Variant], guarded: bool
) -> str:
    """One hash over everything that the patched tree is a function of, dspatch's own code included."""
    models = [f"{variant.name} {variant!r}" for variant in variants]
    # A part of a series has the same folders as the whole.
    names = [patch.name for patch in series.patches]
    recorded = usesfile.digest(patch.folder for patch in series.patches) if guarded else ""
    # Which form of a patch counts as made here depends on the name too.
    here = [checkout.commit, checkout.rev, checkout.revision is None]
    inputs = [*here, series.digest, names, target, models, digest_of(CODE), recorded]
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


def _conflict(
    checkout: Checkout, series: Series, failed: Sequence[Result], results: Sequence[Result]
) -> DspatchError:
    errors = [(result.patch, result.error) for result in failed if result.error is not None]
    if all(error.exit_code == TemplateError.exit_code for _, error in errors):
        return errors[0][1]
    names = ", ".join(patch.name for patch, _ in errors)
    missed = [each for patch, _ in errors for each in leftout.missed(series, patch)]
    lines = [*(_detail(patch, error) for patch, error in errors), *map(str, missed)]
    details = "\n        ".join(lines)
    rest = len(results) - len(failed)
    others = f"\n        the other {rest} would apply without them" if rest else ""
    return PatchConflictError(
        f"{checkout.title}: {names} cannot be applied, so nothing was.",
        why=details + others,
        next=leftout.way_out(series, missed[0])
        if missed
        else _explained_by(checkout, errors[0][0]) + _other_source(checkout, errors),
    )


def _explained_by(checkout: Checkout, patch: Patch) -> str:
    """The command that explains a conflict, from a revision where the patch is known to apply."""
    made_on = [patch.written_for] if patch.written_for else [form.made_on for form in patch.forms]
    others = [rev for rev in made_on if rev and not same(rev, checkout.rev) and len(rev) < 40]
    if not others:
        return f"dspatch patch show {patch.name}"
    job = f"--engine {checkout.engine} --rev {others[-1]} --onto {checkout.rev}"
    return f"dspatch patch rebase {job} --dry-run"


def _other_source(checkout: Checkout, errors: Sequence[tuple[Patch, DspatchError]]) -> str:
    """What to try where a file is missing that the build of a wheel may have put there."""
    missing = any(
        conflict.kind == "missing"
        for _, error in errors
        if isinstance(error, MergeConflictError)
        for conflict in error.conflicts
    )
    if not missing or checkout.source == "wheel":
        return ""
    return "; for a file that only the wheel has, apply with --source wheel"


def _detail(patch: Patch, error: DspatchError) -> str:
    return f"{patch.name}: {error.what}" + (f" ({error.why})" if error.why else "")
