"""Conflicts of a rebase explained: from the releases between, from upstream's history, from the series itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dspatch import pins, threeway, treefiles
from dspatch.apply import PatchedTree
from dspatch.carry.rebase import between, explain, history
from dspatch.carry.rebase.carried import Carried, Side
from dspatch.carry.rebase.codeplace import Trees
from dspatch.carry.rebase.explain import Context, Read, Reason, Release
from dspatch.carry.rebase.history import Span
from dspatch.carry.rebase.rebasestate import Wanted
from dspatch.console import Console
from dspatch.diffs import FileDiff
from dspatch.errors import DspatchError, PatchConflictError
from dspatch.git import Repo
from dspatch.treefiles import Files


def explained(
    carried: Sequence[Carried], old: PatchedTree, new: Side, span: Span | None, console: Console
) -> tuple[Carried, ...]:
    """The rows of a rebase, those in conflict with their reasons.

    Releases that cannot be asked are told in a note; then the reasons name no release.
    """
    if not any(one.status == "conflict" for one in carried):
        return tuple(carried)
    with new.checkout.repo.reading():
        return _explained(carried, old, new, span, console)


def _explained(
    carried: Sequence[Carried], old: PatchedTree, new: Side, span: Span | None, console: Console
) -> tuple[Carried, ...]:
    repo = new.checkout.repo
    pristine = treefiles.of_tree(repo, old.checkout.tree)

    def told(releases: Iterable[Release]) -> tuple[Carried, ...]:
        return tuple(
            replace(one, reasons=_reasons(one, old, pristine, new, releases, span))
            if one.status == "conflict"
            else one
            for one in carried
        )

    try:
        with (
            between.between(
                new.checkout.engine, old.checkout.rev, new.checkout.rev, repo, console.note
            ) as releases,
            console.working("looking for the release that changed the lines"),
        ):
            return told(_Walked(releases))
    except DspatchError as error:
        console.note(f"the releases between cannot be read: {error.what}")
        return told(())


def upstream_history(wanted: Wanted, console: Console) -> Span | None:
    """Upstream's commits between both revisions, when `--repo` names a clone that has them."""
    if wanted.repo is None:
        return None
    place = Path(wanted.repo).expanduser()
    if not place.is_dir():
        console.note(f"{wanted.repo} is no folder, so upstream's history is not looked at")
        return None
    found = history.span(Repo(place), _names(wanted, wanted.rev), _names(wanted, wanted.onto))
    if found is None:
        console.note(f"{place} has no history from {wanted.rev} to {wanted.onto}")
    return found


def _names(wanted: Wanted, rev: str) -> list[str]:
    try:
        pin = pins.load(wanted.engine, rev)
    except DspatchError:
        return [rev]
    return [name for name in (pin.commit, pin.tag, rev) if name]


class _Walked:
    """Releases that several conflicts ask about, opened once."""

    def __init__(self, releases: Iterable[Release]) -> None:
        self._rest = iter(releases)
        self._opened: list[Release] = []

    def __iter__(self) -> Iterator[Release]:
        yield from self._opened
        for release in self._rest:
            self._opened.append(release)
            yield release


def _reasons(
    one: Carried,
    old: PatchedTree,
    pristine: Files,
    new: Side,
    releases: Iterable[Release],
    span: Span | None,
) -> tuple[Reason, ...]:
    applied = old.applied(one.patch.name)
    if applied is None or one.before is None:
        return ()
    repo = new.checkout.repo
    context = Context(
        trees=Trees(
            old=treefiles.of_tree(repo, f"{applied.commit}^"),
            new=one.before,
            search=new.place.search,
        ),
        pristine=pristine,
        old_rev=old.checkout.rev,
        new_rev=new.rev,
        releases=releases,
        history=span,
        merges=lambda file, read: _merges(repo, file, read),
    )
    return explain.explain(old.diff(applied), context)


@dataclass(frozen=True, kw_only=True)
class _OneFile:
    """A source that holds one file."""

    path: str
    data: bytes | None

    def read(self, path: str) -> bytes | None:
        return self.data if path == self.path else None

    def mode(self, path: str) -> str:
        return treefiles.PLAIN

    def paths(self) -> Collection[str]:
        return () if self.data is None else (self.path,)

    def known_blob(self, path: str) -> str | None:
        return None


def _merges(repo: Repo, file: FileDiff, read: Read) -> bool:
    """Whether git merges a file's diff onto what a release has of that file."""
    path = file.old_path or file.path
    files = Files(source=_OneFile(path=path, data=read(path)))
    if not threeway.obstacles([file], files):
        return True
    try:
        threeway.apply_diff(repo, file.text, files)
    except PatchConflictError:
        return False
    return True
