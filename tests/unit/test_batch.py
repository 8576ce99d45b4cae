"""Random series against `git am`: the same tree or both refuse, and dspatch is never the less strict of the two."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dspatch import batch, git, treefiles
from dspatch.batch import Result
from dspatch.git import Change, Repo
from dspatch.onto import Place
from dspatch.threeway import MergeConflictError
from dspatch.treefiles import Files

Tree = dict[str, bytes]
NAMES = ("a.py", "b.py", "c/d.txt")
# Few different lines, so that hunks fit several places and repeat each other.
LINE = st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"def f():\n", b"    return 1\n"])
FILE = st.lists(LINE, min_size=3, max_size=16).map(b"".join)
TREE = st.dictionaries(st.sampled_from(NAMES), FILE, min_size=1)


@st.composite
def edited(draw: st.DrawFn, tree: Tree, most: int = 2) -> Tree:
    """A tree with a few places of it changed, a file added or deleted."""
    tree = dict(tree)
    for _ in range(draw(st.integers(1, most))):
        name = draw(st.sampled_from(NAMES))
        lines = tree.get(name, b"").splitlines(keepends=True)
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINE, max_size=2))
        if lines:
            tree[name] = b"".join(lines)
        else:
            tree.pop(name, None)
    return tree


@dataclass(frozen=True)
class Setting:
    """A series as the states it goes through, and the upstream that it comes onto."""

    states: tuple[Tree, ...]
    onto: Tree


@st.composite
def settings_of(draw: st.DrawFn) -> Setting:
    states = [draw(TREE)]
    for _ in range(draw(st.integers(1, 4))):
        states.append(draw(edited(states[-1])))
    return Setting(tuple(states), draw(st.one_of(st.just(states[0]), edited(states[0]))))


class Bench:
    """A repository that git works in, and a bare one of dspatch's without the series' own blobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = Repo(folder / "plain")
        self.plain.path.mkdir()
        self.plain.run("init", "-q", "--template=", "-b", "main")
        self.count = 0

    def commit(self, repo: Repo, tree: Tree, parent: str | None, before: Tree) -> str:
        gone = [Change(path=path, data=None) for path in before.keys() - tree.keys()]
        changes = [*gone, *(Change(path=path, data=data) for path, data in tree.items())]
        new = git.NewCommit(message=f"change\n\n{parent}\n", changes=changes)
        return repo.write_commits("refs/heads/main", parent, [new])[0]

    def series(self, states: tuple[Tree, ...]) -> list[str]:
        """The commits of a series, its base first."""
        commits = [self.commit(self.plain, states[0], None, {})]
        for before, after in pairwise(states):
            commits.append(self.commit(self.plain, after, commits[-1], before))
        return commits

    def am(self, mails: bytes, onto: Tree, *options: str) -> str | None:
        """The tree that `git am` makes of all mails; `None` when it refuses one of them."""
        commit = self.commit(self.plain, onto, None, {})
        self.plain.run("reset", "-q", "--hard", commit)
        words = [
            "git",
            "-c",
            "user.name=x",
            "-c",
            "user.email=x@localhost",
            "am",
            "-q",
            "--keep-cr",
        ]
        done = subprocess.run(
            [*words, *options], cwd=self.plain.path, input=mails, capture_output=True, check=False,
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
        )  # fmt: skip
        if done.returncode:
            shutil.rmtree(self.plain.path / ".git/rebase-apply", ignore_errors=True)
            return None
        return self.plain.run("rev-parse", "HEAD^{tree}")

    def carried(self, diffs: list[str], onto: Tree) -> tuple[Files, list[Result]]:
        """What dspatch makes of the same diffs where nobody has the files that they were made on."""
        self.count += 1
        repo = git.init_bare(self.folder / f"bare{self.count}")
        commit = self.commit(repo, onto, None, {})
        place = Place(
            engine="mini", rev="v2.0", commit=commit, repo=repo, context=SimpleNamespace()  # type: ignore[arg-type]
        )  # fmt: skip
        files = treefiles.of_tree(repo, commit)
        results = list(batch.changes_of([_patch(diff) for diff in diffs], files, place))
        for result in results:
            if result.outcome:
                files = files.with_changes(result.outcome.changes)
        return files, results


def _patch(diff: str) -> Any:
    form = SimpleNamespace(made_on="0" * 40, diff=diff, path=Path("x.diff"))
    return SimpleNamespace(name="x", renders=False, forms=(form,), fuzz=None)


def _content(files: Files) -> Tree:
    return {path: files.read(path) or b"" for path in files.paths()}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        yield Bench(Path(folder))


@settings(max_examples=60)
@given(setting=settings_of())
def test_a_series_gives_what_git_am_gives_or_is_refused(setting: Setting, bench: Bench) -> None:
    commits = bench.series(setting.states)
    words = ["format-patch", "--stdout", "--binary", "--full-index", "-k", "--always"]
    mails = bench.plain._execute([*words, f"{commits[0]}..{commits[-1]}"], None, None)
    diffs = [diff for diff in bench.plain.diffs(commits[1:]) if diff]
    if len(diffs) < len(commits) - 1:
        return  # a commit without a change, at which `git am` stops
    wanted = bench.am(mails, setting.onto)
    files, results = bench.carried(diffs, setting.onto)
    outcomes = [result.outcome for result in results if result.outcome]
    event(f"dspatch {len(outcomes) == len(results)}, git am {wanted is not None}")
    if any(outcome.note or outcome.how == "upstream" for outcome in outcomes):
        assert setting.onto != setting.states[0]  # something of it is upstream, where git am stops
    elif any(outcome.how == "merged" for outcome in outcomes):
        # Another file has the bytes that it was made on.
        assert len(outcomes) < len(results) or bench.am(mails, setting.onto, "-3") is not None
    elif len(outcomes) == len(results):
        assert {outcome.how for outcome in outcomes} == {"strict"}
        assert wanted is not None, "dspatch applied what git am refuses"
        commit = bench.commit(bench.plain, _content(files), None, {})
        assert bench.plain.run("rev-parse", f"{commit}^{{tree}}") == wanted
    elif wanted is not None:
        first = next(result.error for result in results if result.error)
        assert isinstance(first, MergeConflictError)
        # git took the nearest of several places.
        assert {conflict.kind for conflict in first.conflicts} <= {"many places", "no base"}
