"""Which patches of an applied series change lines that an earlier one of them wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from dspatch import diffs
from dspatch.git import Repo


def found(repo: Repo, commits: Sequence[str]) -> Iterator[tuple[str, str, str, int]]:
    """The later commit, the earlier one, the path, and the first line as the earlier one left it.

    commits: one a patch, in the order in which they were applied.
    """
    if not commits:
        return
    touched: set[str] = set()
    for commit, text in zip(commits, repo.diffs(list(commits)), strict=True):
        files = diffs.read(text)
        for file in files:
            path = file.old_path
            if path in touched and path is not None:
                yield from _of_file(repo, commits, commit, path, file)
        touched.update(file.new_path for file in files if file.new_path)


def _of_file(
    repo: Repo, commits: Sequence[str], commit: str, path: str, file: diffs.FileDiff
) -> Iterator[tuple[str, str, str, int]]:
    wrote = repo.blame([f"{commit}^", f"^{commits[0]}^"], path)
    seen: set[str] = set()
    for line in _removed(file):
        earlier = wrote[line - 1]
        if earlier in commits and earlier not in seen:
            seen.add(earlier)
            yield commit, earlier, path, line


def _removed(file: diffs.FileDiff) -> Iterator[int]:
    """The numbers of the lines that a diff takes out."""
    for hunk in file.hunks:
        matcher = SequenceMatcher(None, hunk.before, hunk.after, autojunk=False)
        for tag, start, end, _, _ in matcher.get_opcodes():
            if tag in ("delete", "replace"):
                yield from range(hunk.old_start + start, hunk.old_start + end)
