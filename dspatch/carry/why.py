"""Where each line of a patched file comes from: a patch of the series, upstream, or somebody's hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import PurePosixPath

from dspatch.errors import DspatchError
from dspatch.git import Repo

# How a commit that dspatch wrote names its patch.
_NAMED = re.compile(r"^Patch: (\S+)$", re.MULTILINE)
# What git blame calls lines of a work tree that no commit has.
_NOT_COMMITTED = "0" * 40


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Consecutive lines from one place: `source` is `patch`, `upstream` or `edited`."""

    first: int
    last: int
    source: str
    patch: str = ""


@dataclass(frozen=True, kw_only=True)
class History:
    """A tree that a series was applied to: its base, its head (`None`: the work tree), a patch a commit."""

    repo: Repo
    base: str
    head: str | None
    patches: Mapping[str, str]


def origins(history: History, path: str) -> tuple[Origin, ...]:
    """The lines of a file, grouped by where they come from. The file must be there."""
    revisions = [f"^{history.base}", *([history.head] if history.head else [])]
    commits = history.repo.blame(revisions, path)
    sources = {commit: _source(commit, history) for commit in set(commits)}
    return tuple(_grouped([sources[commit] for commit in commits]))


def all_edited(text: bytes) -> tuple[Origin, ...]:
    """The lines of a file that git does not know."""
    lines = len(text.splitlines())
    return (Origin(first=1, last=lines, source="edited"),) if lines else ()


def _source(commit: str, history: History) -> tuple[str, str]:
    if commit in history.patches:
        return "patch", history.patches[commit]
    if commit == history.base:
        return "upstream", ""
    if commit == _NOT_COMMITTED:
        return "edited", ""
    # Somebody's commit in the work tree: one of ours amended, or one of his own.
    named = _NAMED.search(history.repo.run("log", "-1", "--format=%B", commit))
    return ("patch", named[1]) if named else ("edited", "")


def _grouped(sources: Sequence[tuple[str, str]]) -> Iterator[Origin]:
    first = 1
    for (source, patch), group in groupby(sources):
        last = first + len(list(group)) - 1
        yield Origin(first=first, last=last, source=source, patch=patch)
        first = last + 1


def of_line(found: Sequence[Origin], line: int, path: str) -> Origin:
    """The origin of one line. Raises `DspatchError` when the file is shorter."""
    for origin in found:
        if origin.first <= line <= origin.last:
            return origin
    lines = found[-1].last if found else 0
    raise DspatchError(
        f"{path} has no line {line}.", why=f"it has {lines} lines", next=f"dspatch patch why {path}"
    )


def took_out(history: History, path: str, found: Sequence[Origin]) -> tuple[str, ...]:
    """The patches that changed a file and own no line of it: they took lines out, or were overwritten."""
    kept = {origin.patch for origin in found}
    tip = [history.base, *history.patches][-1]
    listing = ("rev-list", f"{history.base}..{tip}", "--", path)
    changed = set(history.repo.run("--literal-pathspecs", *listing).split())
    return tuple(
        name for commit, name in history.patches.items() if name not in kept and commit in changed
    )


def no_such_file(path: str, paths: Sequence[str], where: str) -> DspatchError:
    """The error for a file that a tree does not have."""
    name = PurePosixPath(path).name
    same = [one for one in paths if PurePosixPath(one).name == name]
    near = same or get_close_matches(path, paths, n=3, cutoff=0.6)
    return DspatchError(
        f"{where} has no file {path}.",
        why=f"nearest found: {', '.join(sorted(near)[:3])}" if near else "no file is called so",
        next="give the path as it is in the engine's tree",
    )
