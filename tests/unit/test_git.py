"""git: commits that depend on content alone, and trees read back as written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dspatch import git
from dspatch.errors import GitError

TRICKY = {
    "plain.txt": b"one\n",
    "sp ace/ü.txt": b"no newline",
    "empty/__init__.py": b"",
    '"quoted"': b"q\n",
    "bin": bytes(range(256)),
    "crlf.txt": b"a\r\nb\r\n",
}


def chain(repo: git.Repo) -> list[str]:
    first = git.NewCommit(
        message="first\n", changes=tuple(git.Change(path=p, data=d) for p, d in TRICKY.items())
    )
    second = git.NewCommit(
        message="second\n",
        changes=(
            git.Change(path="plain.txt", data=None),
            git.Change(path="run.sh", data=b"#!/bin/sh\n", mode="100755"),
            git.Change(path="link", data=b"bin", mode="120000"),
        ),
    )
    return repo.write_commits("refs/heads/x", None, [first, second])


def test_the_same_content_gives_the_same_commits(tmp_path: Path) -> None:
    one = chain(git.init_bare(tmp_path / "a.git"))
    two = chain(git.init_bare(tmp_path / "b.git"))
    assert one == two
    subprocess.run(
        ["git", "-C", tmp_path / "a.git", "fsck", "--strict"], check=True, capture_output=True
    )


def test_a_tree_reads_back_as_written(tmp_path: Path) -> None:
    repo = git.init_bare(tmp_path / "a.git")
    commits = chain(repo)
    entries = repo.entries(commits[0])
    assert {path: repo.blob(e.blob) for path, e in entries.items()} == TRICKY
    with repo.reading() as read:
        assert {path: read(e.blob) for path, e in entries.items()} == TRICKY
    later = repo.entries(commits[1])
    assert later["run.sh"].mode == "100755"
    assert later["link"].mode == "120000"
    assert "plain.txt" not in later
    assert set(repo.changed_paths(commits[0], commits[1])) == {"plain.txt", "run.sh", "link"}


def test_an_error_carries_what_git_said(tmp_path: Path) -> None:
    repo = git.init_bare(tmp_path / "a.git")
    with pytest.raises(GitError) as error:
        repo.run("cat-file", "-p", "0" * 40)
    assert "Not a valid object name" in error.value.why
    assert repo.resolve("no-such-ref") is None


def test_the_repository_of_a_calling_hook_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = git.init_bare(tmp_path / "outer.git")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "outer.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "outer.index"))
    chain(git.init_bare(tmp_path / "a.git"))
    assert outer.run("for-each-ref") == ""


def test_a_users_git_configuration_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = tmp_path / "config"
    hostile.write_text("[core]\n\tautocrlf = true\n[user]\n\tname = other\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(hostile))
    repo = git.init_bare(tmp_path / "a.git")
    commits = chain(repo)
    assert repo.blob(repo.entries(commits[0])["crlf.txt"].blob) == TRICKY["crlf.txt"]
    assert "other" not in repo.run("log", "--format=%an %cn", commits[-1])
