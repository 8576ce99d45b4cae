"""`dspatch patch new`, `edit` and `drop`: begin a patch, stand at one to edit it, leave one out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dspatch import git, receipt, worktree
from dspatch import series as series_module
from dspatch.carry.editing import chain, layer
from dspatch.carry.editing.layer import Draft
from dspatch.carry.exchange import projection
from dspatch.carry.exchange.mail import PatchMail
from dspatch.console import Console
from dspatch.errors import DspatchError, EditedTreeError, PatchFormatError
from dspatch.files import write_atomically
from dspatch.job import Job
from dspatch.patchfile import Patch
from dspatch.series import Series

# Gives the text back as somebody left it, `None` when it is as it was.
Editor = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A new patch in a job's tree: a commit, whether it holds edits already, and where to edit."""

    job: Job
    name: str
    edited: bool


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A patch that the series no longer has: removed, or left out of what ships."""

    name: str
    removed: tuple[Path, ...]
    left_out: bool
    next: str


def begin(job: Job, name: str, subject: str, reason: str, upstream: str | None) -> Begun:
    """Commit the edits of a job's tree as a new patch; without edits, an empty commit to fill.

    Raises `PatchFormatError` for a name that is taken, `EditedTreeError` where git is busy.
    """
    receipt.require(job, "apply")
    names = [patch.name for patch in series_module.layered(job.id.engine).patches]
    projection.check_name(name)
    projection.check_free(name, names)
    with job.locked():
        repo = git.Repo(job.tree)
        if repo.resolve(worktree.EDITING) and repo.resolve("HEAD") != repo.resolve(
            worktree.PATCHED
        ):
            raise EditedTreeError(
                f"{job.tree} stands at one patch, below the others.",
                why="a new patch goes on top of the series",
                next="dspatch patch refresh, then dspatch patch new",
            )
        edited = bool(repo.status())
        fields = (("Patch", name), ("Upstream", upstream or ""))
        mail = PatchMail(subject=subject, body=reason, fields=fields, diff="")
        repo.commit_all(f"{mail.subject}\n\n{mail.message}\n")
    return Begun(job=job, name=name, edited=edited)


def stand_at(job: Job, name: str) -> Path:
    """Put a job's tree at one patch, below those that follow it, to be edited there.

    Raises `EditedTreeError` for edits that are not yet taken in, `PatchFormatError` for a patch
    that the job does not have.
    """
    content = receipt.require(job, "apply")
    series_module.layered(job.id.engine).patch(name)
    commits = {patch["name"]: patch["commit"] for patch in content["patches"]}
    if name not in commits:
        raise PatchFormatError(
            f"{name} is not part of {job.id}.",
            why="patches of this job: " + ", ".join(commits),
            next=f"dspatch patch list --engine {job.id.engine} --rev {job.id.rev}",
        )
    with job.locked():
        busy = chain.unfinished(git.Repo(job.tree))
        if busy:
            raise EditedTreeError(f"git is in the middle of {busy} in {job.tree}.")
        worktree.stand_at(job.tree, commits[name])
    return job.tree


def edit_words(engine: str, name: str, editor: Editor) -> bool:
    """Let somebody edit a patch.toml; returns whether it changed. What cannot be read is kept beside it.

    Raises `PatchFormatError`.
    """
    with layer.editing(engine) as draft:
        patch = series_module.layered(engine).patch(name)
        layer.refuse_installed(patch)
        path = patch.folder / "patch.toml"
        changed = editor(path.read_text())
        if changed is None or changed == path.read_text():
            return False
        draft.changes[path] = changed.encode()
        try:
            with draft.tried():
                pass
        except DspatchError as error:
            rejected = draft.own.parent / f"{name}.toml.rejected"
            write_atomically(rejected, changed.encode())
            error.next = f"your text is kept in {rejected}"
            raise
        draft.write()
    return True


def drop(engine: str, name: str, console: Console, *, undo: bool = False) -> Dropped:
    """Remove a patch of the own layer; leave one that ships out of the series, or take it in again.

    Raises `PatchFormatError` for an unknown name.
    """
    with layer.editing(engine) as draft:
        series = series_module.layered(engine)
        patch = series.patch(name)
        removed: tuple[Path, ...] = ()
        if patch.shipped:
            _leave_out(draft, name, undo)
        elif undo:
            raise PatchFormatError(f"{name} is your own patch and was not left out.")
        else:
            removed = _remove(draft, series, patch)
        with draft.tried():
            pass
        draft.write()
    return Dropped(
        name=name,
        removed=removed,
        left_out=patch.shipped and not undo,
        next=f"dspatch apply --engine {engine} --rev REV",
    )


def _leave_out(draft: Draft, name: str, undo: bool) -> None:
    others = [line for line in draft.lines() if _named(line) != f"!{name}"]
    if undo and others == draft.lines():
        raise PatchFormatError(f"{name} is not left out.", next="dspatch patch list")
    draft.set_lines(others if undo else [*others, f"!{name}"])


def _remove(draft: Draft, series: Series, patch: Patch) -> tuple[Path, ...]:
    """The files of a patch, and the templates that no other patch names."""
    kept = {
        other.templates / file.template
        for other in series.patches
        if other is not patch
        for file in other.files
    }
    own = [path for path in patch.folder.rglob("*") if path.is_file()]
    templates = [patch.templates / file.template for file in patch.files]
    gone = sorted({*own, *(path for path in templates if path not in kept)})
    draft.changes.update(dict.fromkeys(gone))
    draft.set_lines([line for line in draft.lines() if _named(line) != patch.name])
    return tuple(gone)


def _named(line: str) -> str:
    """The patch that a line of `series` names."""
    return "".join(line.split("#", 1)[0].split())
