"""The diff reader against git: random trees and edits, mails as `git mailinfo` cuts them, diffs in bad shape."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dspatch import diffs, git
from dspatch.diffs import FileDiff
from dspatch.errors import DiffFormatError
from dspatch.git import Change, Repo

Tree = dict[str, tuple[str, bytes]]
# Git runs for every example.
REAL = settings(max_examples=60)

# What content can hold that a reader could take for the diff's own syntax.
LINE = st.sampled_from(
    [
        *(b"", b"a", b"b", b"x = 1", b"    pass", b"-- ", b"--- a/f", b"+++ b/f", b"\\ No newline"),
        *(b"@@ -1 +1 @@", b"diff --git a/f b/f", b"GIT binary patch", b"Index: f", b"2.39.5"),
        *(b"form\ffeed", b"latin\xe9", "ü".encode(), b"cr\r", b"lone\rcr", b"\x1b[0m", b"\t"),
    ]
)
TEXT = st.builds(
    lambda lines, end: b"\n".join(lines) + (b"\n" if end and lines else b""),
    st.lists(LINE, max_size=14),
    st.booleans(),
)
DATA = st.one_of(TEXT, TEXT, TEXT, st.binary(max_size=40), st.just(b"nul\0\n" * 5))
PART = st.sampled_from(
    ["f", "g.py", "s p", "ü", 'q"t', "t\tb", "n\nl", "b\\s", "b", "a b", "x b", " lead", "c\x01"]
)
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
MODE = st.sampled_from(["100644", "100644", "100644", "100755", "120000"])
ENTRY = st.tuples(MODE, DATA)


def _without_folders_as_files(tree: Tree) -> Tree:
    return {p: e for p, e in tree.items() if not any(other.startswith(f"{p}/") for other in tree)}


TREE = st.dictionaries(PATH, ENTRY, max_size=4).map(_without_folders_as_files)


@st.composite
def edited_trees(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree and what became of it: files changed, renamed, added, deleted, made executable."""
    old = draw(TREE)
    new: Tree = {}
    for path, (mode, data) in old.items():
        kind = draw(st.sampled_from(["keep", "edit", "mode", "move", "move and edit", "delete"]))
        lines = data.split(b"\n")
        if "edit" in kind:
            at = draw(st.integers(0, len(lines)))
            lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINE, max_size=2))
        to = draw(PATH) if "move" in kind else path
        if kind != "delete":
            new[to] = (draw(MODE) if kind == "mode" else mode, b"\n".join(lines))
    return old, _without_folders_as_files({**new, **draw(TREE)})


@pytest.fixture(scope="module")
def repo() -> Iterator[Repo]:
    with tempfile.TemporaryDirectory() as folder:
        yield git.init_bare(Path(folder) / "bare")


def tree_of(repo: Repo, files: Tree) -> str:
    changes = [Change(path=p, data=data, mode=mode) for p, (mode, data) in files.items()]
    commit = repo.write_commits("refs/t", None, [git.NewCommit(message="t", changes=changes)])
    return repo.run("rev-parse", f"{commit[0]}^{{tree}}")


def plumbing(repo: Repo, old: str, new: str) -> list[tuple[str, ...]]:
    """What git itself says of two trees: modes, blobs and paths of every file that differs."""
    fields = repo.run("diff-tree", "-r", "-z", "-M", "--raw", "--abbrev=40", old, new).split("\0")
    found = []
    while len(fields) > 1:
        modes = fields.pop(0).removeprefix(":").split(" ")
        a = fields.pop(0)
        b = fields.pop(0) if modes[4][0] == "R" else a
        found.append((*modes[:4], a, b))
    return found


def told(file: FileDiff) -> tuple[str, ...]:
    """A file of the diff in the words of `plumbing`."""
    nothing = ("000000", "0" * 40)
    old = (file.old_mode or nothing[0], file.old_blob or nothing[1])
    new = (file.new_mode or nothing[0], file.new_blob or nothing[1])
    path = file.old_path or file.path, file.new_path or file.path
    return (old[0], new[0], old[1], new[1], *path)


def patched(file: FileDiff, old: bytes) -> bytes:
    """The new content of a file by the hunks as they were read."""
    lines = _lines(old)
    for hunk in reversed(file.hunks):
        start = hunk.old_start - (1 if hunk.old_count else 0)
        before, after = (
            [line.encode("utf-8", "surrogateescape") for line in side]
            for side in (hunk.before, hunk.after)
        )
        assert (len(before), len(after)) == (hunk.old_count, hunk.new_count)
        assert lines[start : start + len(before)] == before
        lines[start : start + len(before)] = after
    return b"".join(lines)


def _lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def content(repo: Repo, blob: str | None) -> bytes:
    return b"" if blob is None or not blob.strip("0") else repo.blob(blob)


@REAL
@given(trees=edited_trees(), quote=st.booleans())
def test_a_diff_is_read_as_git_means_it(trees: tuple[Tree, Tree], quote: bool, repo: Repo) -> None:
    old, new = tree_of(repo, trees[0]), tree_of(repo, trees[1])
    diff = repo.diff(old, new)
    if quote:  # as git writes it for somebody without our settings
        words = ["-c", "core.quotePath=true", "diff-tree", "-p", "-r", "--binary", "--full-index"]
        diff = repo._execute([*words, "-M", old, new], None, None).decode("utf-8", "surrogateescape")  # fmt: skip
    files = diffs.read(diff)
    assert "".join(file.text for file in files) == diff
    expected = []
    for line in plumbing(repo, old, new):
        # A file that became a link, or a link a file, is written as deleted and made again.
        kinds = (line[0][:3], line[1][:3])
        if "000" not in kinds and kinds[0] != kinds[1]:
            expected += [(line[0], "000000", line[2], "0" * 40, *line[4:])]
            expected += [("000000", line[1], "0" * 40, line[3], *line[4:])]
        else:
            expected.append(line)
    # A rename or a mode without a change of content names no blobs.
    named = [
        line if file.old_blob or file.new_blob else (*line[:2], "0" * 40, "0" * 40, *line[4:])
        for file, line in zip(files, expected, strict=True)
    ]
    modes = [
        line if file.old_mode or file.new_mode else ("000000", "000000", *line[2:])
        for file, line in zip(files, named, strict=True)
    ]
    assert [told(file) for file in files] == modes
    for file in files:
        if not file.binary and (file.old_blob or file.new_blob):
            assert patched(file, content(repo, file.old_blob)) == content(repo, file.new_blob)
        else:
            assert not file.hunks


@REAL
@given(trees=edited_trees())
def test_each_files_part_applies_by_itself(trees: tuple[Tree, Tree], repo: Repo) -> None:
    old, new = tree_of(repo, trees[0]), tree_of(repo, trees[1])
    files = diffs.read(repo.diff(old, new))
    everything = trees[0].keys() | trees[1].keys()
    assume(_without_folders_as_files(dict.fromkeys(everything, ("", b""))).keys() == everything)
    # A rename may take a name that another part still holds.
    assume(all(None in (file.old_path, file.new_path) or len(file.paths) == 1 for file in files))
    with repo.scratch_index() as index:
        index.add(repo.entries(old).values())
        for file in files:
            index.apply(file.text)
        assert index.tree() == new


MESSAGE_LINE = st.sampled_from(
    [
        *("", "words", "--- a/f", "+++ b/f", "---", "--- ", "---  x", "----", "-- ", "diff -u x"),
        *("diff --git a/f b/f", "Index: f", "@@ -1 +1 @@", "index 1234567..89abcde 100644", "From x"),
        *("From: somebody", "Subject: another", "-x", "+y", ">From here", "  indented", "deleted file"),
    ]
)  # fmt: skip
DIFF = """\
diff --git a/f b/f
index 63d8dbd40c23542e740659a7168a0ce3138ea748..a2fd2c78b7a93a1ee8bd8bd51ffd3cff5a1ca1bd 100644
--- a/f
+++ b/f
@@ -1 +1 @@
-b
+c
"""


@dataclass(frozen=True)
class Mail:
    text: str
    patch: str


def mail(message: list[str], folder: Path) -> Mail:
    """A mail as `git format-patch` lays it out, and the patch that `git mailinfo` finds in it."""
    lines = ["From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001"]
    lines += ["From: A <a@localhost>", "Date: Sat, 1 Jan 2000 00:00:00 +0000", "Subject: [PATCH] s"]
    text = "\n".join([*lines, "", *message, "---", " f | 2 +-", " 1 file changed", "", ""])
    text += f"{DIFF}-- \n2.39.5\n\n"
    out = folder / "patch"
    subprocess.run(
        ["git", "mailinfo", "-k", folder / "message", out],
        input=text.encode(), stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return Mail(text=text, patch=out.read_text())


def numstat(text: str, folder: Path, *words: str) -> tuple[int, str]:
    """Whether git can read a patch, with `--check` also apply it to two files of one line; its counts."""
    for name in ("f", "g"):
        (folder / name).write_text("b\n")
    done = subprocess.run(
        ["git", "apply", *words, "--numstat", "-"], input=text.encode(), capture_output=True, check=False,
        cwd=folder, env={**os.environ, "GIT_CEILING_DIRECTORIES": "/"},
    )  # fmt: skip
    return done.returncode, done.stdout.decode()


@settings(REAL, max_examples=120)
@example(message=["diff --git a/f b/f", "@@ -1 +1 @@", ""])
@example(message=["diff --git a/f b/f", "index 1234567..89abcde 100644", "@@ -1 +1 @@", ""])
@example(message=["diff --git a/f b/f", "index 1234567..89abcde 100644", "@@ -1 +1 @@", "+++ b/f"])
@given(message=st.lists(MESSAGE_LINE, max_size=7))
def test_a_mails_message_is_cut_as_git_cuts_it(message: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        sent = mail(message, Path(name))
        broken, counts = numstat(sent.patch, Path(name))
        unfit, _ = numstat(sent.patch, Path(name), "--check")
        try:
            files = diffs.read(sent.text)
        except DiffFormatError:
            assert unfit, "git takes it, and applies it"
            return
        assert not broken, "git takes the message for a broken diff"
        found = "".join(
            f"{sum(h.added for h in f.hunks)}\t{sum(h.removed for h in f.hunks)}\t{f.path}\n"
            for f in files
        )
        assert found == counts
        again = "".join(f.text for f in files)
        assert numstat(again, Path(name)) == (0, counts)
        assert bool(numstat(again, Path(name), "--check")[0]) == bool(unfit)


def test_a_message_that_is_a_whole_diff_is_taken_for_one_as_git_does(tmp_path: Path) -> None:
    other = DIFF.replace("/f", "/g")
    sent = mail(other.splitlines(), tmp_path)
    status, counts = numstat(sent.patch, tmp_path)
    assert (status, [file.path for file in diffs.read(sent.text)]) == (0, ["g", "f"])
    assert counts == "1\t1\tg\n1\t1\tf\n"


def test_blank_lines_behind_a_diff_belong_to_no_hunk() -> None:
    (file,) = diffs.read(DIFF + "\n\n")
    assert file.hunks[0].before == ("b\n",)
    assert file.hunks[0].after == ("c\n",)


def test_context_lines_that_lost_their_blank_are_still_context() -> None:
    text = "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n-b\n+c\n\n d\n"
    (file,) = diffs.read(text)
    assert file.hunks[0].before == ("b\n", "\n", "d\n")


def test_a_diff_cut_off_in_its_last_line_is_refused_as_git_refuses_it(tmp_path: Path) -> None:
    cut = DIFF.removesuffix("\n")
    assert numstat(cut, tmp_path)[0] != 0
    with pytest.raises(DiffFormatError, match="line 7"):
        diffs.read(cut)


def test_plain_diffs_lose_the_first_folder_as_git_takes_it() -> None:
    for old, new in (
        ("a/v/f", "b/v/f"),
        ("v-1.0.orig/v/f", "v-1.0/v/f"),
        ("x/v/f\t2026", "y/v/f\t"),
    ):
        (file,) = diffs.read(f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-b\n+c\n")
        assert (file.old_path, file.new_path) == ("v/f", "v/f")
        assert file.hunks[0].before == ("b\n",)
    index = (
        "Index: v/f\n====\n--- v/f\t(revision 1)\n+++ v/f\t(working copy)\n@@ -1 +1 @@\n-b\n+c\n"
    )
    for unprefixed in (index, DIFF.replace("a/f", "v/f").replace("b/f", "v/f")):
        with pytest.raises(DiffFormatError, match="without the prefixes") as error:
            diffs.read(unprefixed)
        assert "--src-prefix=a/" in error.value.next


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (DIFF.replace("@@ -1 +1 @@", "@@ -1,3 +1,3 @@"), "shorter"),
        (DIFF.replace("-b", "*b"), "expected"),
        ("@@ -1 +1 @@\n-b\n+c\n", "hunk"),
        ("nothing of a diff\n", "no file"),
        (DIFF.replace("a/f", "a/../../f").replace("b/f", "b/../../f"), "outside"),
        (DIFF.partition("@@")[0], "does nothing"),
        (DIFF.replace("a/f", "a/.git/f").replace("b/f", "b/.git/f"), "outside"),
    ],
)
def test_a_broken_diff_is_an_error_that_says_where(broken: str, why: str) -> None:
    with pytest.raises(DiffFormatError) as error:
        diffs.read(broken)
    assert why in error.value.why.lower() + error.value.what.lower()
    assert "git diff --binary --full-index" in error.value.next


@settings(max_examples=300)
@given(
    where=st.integers(0, len(DIFF) - 1),
    put=st.text(alphabet='+- @\\\ndifGab/0,\t"', max_size=3),
    drop=st.integers(0, 4),
)
def test_damage_is_read_or_refused_never_a_crash(where: int, put: str, drop: int) -> None:
    try:
        files = diffs.read(DIFF[:where] + put + DIFF[where + drop :])
    except DiffFormatError:
        return
    assert all(file.path for file in files)
