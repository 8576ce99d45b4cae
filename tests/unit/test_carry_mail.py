"""Patches as mail: read back to the same object, written to the same bytes, taken by real `git am`."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspatch import git
from dspatch.carry.exchange import mail, mailbox
from dspatch.carry.exchange.mail import PatchMail
from dspatch.errors import DiffFormatError

DIFF = "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
STRUCTURE = [
    "diff --git a/x b/x", "diff -u", "Index: x", "---", "--- a/x", "From 12", "From: x", "Subject: y",
    "Date: never", " diff -", "   ---", "Patch: z", "", "  indented", "-- >8 --", "[PATCH] q",
    "Content-Type: text/html", ">From x", "Signed-off-by: A <a@localhost>",
]  # fmt: skip
SUBJECTS = [
    "[Bugfix] x", "Re: y", "cpu-mla: z", "=?UTF-8?q?x?=", ": a", "cpu-mla: [b]", "[half open",
    "Größe → 尺寸", "word " * 60, "longword" * 40, "尺寸" * 90,
]  # fmt: skip
lines = st.lists(st.sampled_from(STRUCTURE) | st.text(), max_size=12)
subjects = st.text(min_size=1) | st.sampled_from(SUBJECTS)


def patch_mail(
    subject: str = "Change it", body: str = "Because.", diff: str = DIFF, **fields: str
) -> PatchMail:
    named = {"Patch": "cpu-mla", "Upstream": "never: a test"} | fields
    return PatchMail(subject=subject, body=body, fields=tuple(named.items()), diff=diff)


@settings(max_examples=400)
@given(subjects, lines.map("\n".join), st.text(), st.sampled_from(["", DIFF]))
def test_any_mail_round_trips(subject: str, body: str, drop_when: str, diff: str) -> None:
    one = patch_mail(subject, body, diff, **{"Drop-when": drop_when})
    data = mail.write(one)
    assert mail.is_own(data)
    assert mail.read_own(data) == one
    assert mail.write(mail.read_own(data)) == data
    assert mailbox.read(data + mail.write(patch_mail()), "two")[-1] == patch_mail()


class Clone:
    """A repository with one commit, and what `git am` makes of a mail in it."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder = folder
        self.bare = git.init_bare(folder / "bare")
        self.base = self.commit(files)
        self.run("clone", "-q", folder / "bare", folder / "clone", within=folder)

    def commit(self, files: dict[str, bytes]) -> str:
        changes = [git.Change(path=path, data=data) for path, data in files.items()]
        new = git.NewCommit(message="base", changes=changes)
        return self.bare.write_commits("refs/heads/main", None, [new])[0]

    def run(self, *words: object, within: Path | None = None, code: int = 0) -> str:
        name = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
        done = subprocess.run(
            ["git", *name, *map(str, words)],
            cwd=within or self.folder / "clone",
            capture_output=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout.decode("utf-8", "surrogateescape")

    def am(self, data: bytes, *options: str) -> str:
        """The tree after `git am`."""
        self.run("reset", "-q", "--hard", self.base)
        (self.folder / "mail.patch").write_bytes(data)
        self.run("am", "-q", *options, self.folder / "mail.patch")
        return self.run("rev-parse", "HEAD^{tree}").strip()

    def message(self) -> str:
        return self.run("log", "-1", "--format=%B")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(
        tmp_path,
        {"x": b"a\n", "crlf.txt": b"1\r\n2\r\n", "u/\xc3\xa4 b.py".encode().decode(): b"1"},
    )


def changed(clone: Clone, files: dict[str, bytes]) -> tuple[str, str]:
    """The diff to a tree of these files, and that tree."""
    commit = clone.commit(files)
    return clone.bare.diff(clone.base, commit), str(clone.bare.resolve(f"{commit}^{{tree}}"))


@settings(max_examples=25)
@given(subject=subjects, body=lines.map("\n".join))
def test_git_am_takes_any_message(
    tmp_path_factory: pytest.TempPathFactory, subject: str, body: str
) -> None:
    clone = Clone(tmp_path_factory.mktemp("am"), {"x": b"a\n"})
    diff, tree = changed(clone, {"x": b"b\n"})
    one = patch_mail(f"S {subject}", body, diff)
    assert clone.am(mail.write(one)) == tree
    # What git kept of the message is read as the same mail, but for blank lines.
    first, _, rest = clone.message().partition("\n")
    assert first == one.subject
    found, fields = mail.split_message(rest)
    assert fields == one.fields
    assert found.split() == one.body.split()


@pytest.mark.parametrize("body", ["\n".join(STRUCTURE), "From: a <b@c>\nDate: x\n\ntext", "---"])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_git_am_keeps_subject_and_guarded_body(clone: Clone, subject: str, body: str) -> None:
    diff, tree = changed(clone, {"x": b"b\n", "crlf.txt": b"1\r\n2\r\n", "u/ä b.py": b"1"})
    one = patch_mail(subject, body, diff)
    assert clone.am(mail.write(one)) == tree
    first, _, rest = clone.message().partition("\n")
    assert first in (one.subject, f"cpu-mla: {one.subject}")
    assert mail.split_message(rest)[0].split() == one.body.split()


@pytest.mark.parametrize(
    ("name", "files"),
    {
        "crlf": {"crlf.txt": b"1\r\n3\r\n"},
        "no newline at end": {"x": b"b"},
        "empty file": {"new/__init__.py": b""},
        "binary": {"blob.bin": bytes(range(256)) * 20},
        "latin-1": {"x": b"\xe4\xf6\n"},
        "path with space and umlaut": {"u/ä b.py": b"2"},
        "line that looks like a mail": {"x": b"a\nFrom 0 Mon Sep 17 00:00:00 2001\n-- \n"},
        "form feed": {"x": b"a\n\x0c\nb\n"},
    }.items(),
)
def test_git_am_gives_the_very_tree(clone: Clone, name: str, files: dict[str, bytes]) -> None:
    base = {"x": b"a\n", "crlf.txt": b"1\r\n2\r\n", "u/ä b.py": b"1"}
    diff, tree = changed(clone, base | files)
    data = mail.write(patch_mail(diff=diff))
    assert clone.am(data, "--keep-cr") == tree
    if name != "crlf":
        assert clone.am(data) == tree
    assert mail.read_own(data).diff == diff


def test_the_bytes_are_these(clone: Clone) -> None:
    one = patch_mail("[CPU] größer", "diff --git in the text", **{"Drop-when": "later\nor never"})
    assert mail.write(one).decode() == (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\n"
        "From: dspatch <dspatch@localhost>\n"
        "Date: Sat, 1 Jan 2000 00:00:00 +0000\n"
        "Subject: =?UTF-8?q?cpu=2Dmla=3A_=5BCPU=5D_gr=C3=B6=C3=9Fer?=\n"
        "MIME-Version: 1.0\n"
        "Content-Type: text/plain; charset=UTF-8\n"
        "Content-Transfer-Encoding: 8bit\n"
        "\n"
        " diff --git in the text\n"
        "\n"
        "Patch: cpu-mla\nUpstream: never: a test\nDrop-when: later\n or never\n"
        "---\n\n" + DIFF
    )


def formatted(clone: Clone, *options: str) -> bytes:
    """Two commits as `git format-patch` writes them to a mailbox."""
    (clone.folder / "clone/x").write_bytes(b"b\n-- \n")
    message = "[Größe] Change x (#12)\n\nWhy it is needed.\n\nSigned-off-by: A <a@localhost>"
    clone.run("commit", "-qam", message)
    (clone.folder / "clone/crlf.txt").write_bytes(b"1\r\n")
    clone.run("commit", "-qam", "Shorten it")
    text = clone.run("format-patch", "--stdout", *options, "HEAD~2")
    return text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("options", [[], ["--attach"], ["-p", "--no-signature"], ["--zero-commit"]])
def test_a_mailbox_of_git(clone: Clone, options: list[str]) -> None:
    one, two = mailbox.read(formatted(clone, *options), "f")
    assert (one.subject, one.body) == ("[Größe] Change x (#12)", "Why it is needed.")
    assert (two.subject, two.body) == ("Shorten it", "")
    clone.run("reset", "-q", "--hard", clone.base)
    for each in (one, two):
        (clone.folder / "d.diff").write_bytes(each.diff.encode("utf-8", "surrogateescape"))
        clone.run("apply", "--index", clone.folder / "d.diff")
    assert (clone.folder / "clone/x").read_bytes() == b"b\n-- \n"
    assert (clone.folder / "clone/crlf.txt").read_bytes() == b"1\r\n"


def test_a_mail_whose_lines_a_transport_ended_with_crlf() -> None:
    sent = f"From: a <a@localhost>\nSubject: [PATCH 1/2] x\n\nwhy\n---\n{DIFF}".replace(
        "\n", "\r\n"
    )
    (one,) = mailbox.read(sent.encode(), "f")
    assert (one.subject, one.body, one.diff) == ("x", "why", DIFF)


PLAIN = {
    "bare": (DIFF, ("the-name", "")),
    "diff -u": (DIFF.split("\n", 2)[2], ("the-name", "")),
    "words before": (f"Mend it\n\nIt was broken.\n\n{DIFF}", ("Mend it", "It was broken.")),
    "dep-3": (
        f"Description: Mend it\n It was broken\n .\n for long.\nForwarded: no\n---\n{DIFF}",
        ("Mend it", "It was broken\n\nfor long."),
    ),
    "svn": ("Index: x\n=====\n" + DIFF.split("\n", 2)[2], ("the-name", "")),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_diff(kind: str) -> None:
    data, (subject, body) = PLAIN[kind]
    (one,) = mailbox.read(data.encode(), "the-name")
    assert (one.subject, one.body) == (subject, body)
    assert one.diff.endswith("-a\n+b\n")


@pytest.mark.parametrize(
    "data", [b"", b"nothing here\n", b"Subject: x\n\nno diff\n", bytes(range(256))]
)
def test_what_holds_no_diff_is_refused(data: bytes) -> None:
    with pytest.raises(DiffFormatError, match="no diff"):
        mailbox.read(data, "f")


@settings(max_examples=300)
@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for each in (data, b"Subject: x\n\n" + data, b"From x 1:00:00 2001\n" + data + DIFF.encode()):
        with contextlib.suppress(DiffFormatError):
            mailbox.read(each, "f")
