"""Where a change to import comes from: addresses, forks, revisions, and what each is called upstream."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dspatch import git
from dspatch.carry.exchange import incoming
from dspatch.carry.exchange.incoming import Origin
from dspatch.errors import UnknownRevisionError

UPSTREAM = "https://github.com/vllm-project/vllm"
ORIGIN = Origin(repo=UPSTREAM, upstream=UPSTREAM, release="v1.0")
SHA = "0123456789" * 4


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f"{UPSTREAM}/commit/{SHA}", (UPSTREAM, SHA)),
        (f"{UPSTREAM}/pull/12", (UPSTREAM, "refs/pull/12/head")),
        (f"{UPSTREAM}/pull/12/files", (UPSTREAM, "refs/pull/12/head")),
        (f"{UPSTREAM}/tree/releases/v0.9", (UPSTREAM, "releases/v0.9")),
        (f"{UPSTREAM}/compare/v1.0...main", (UPSTREAM, "v1.0..main")),
        ("https://x.example/fork.git#mine", ("https://x.example/fork.git", "mine")),
        ("https://x.example/fork.git", ("https://x.example/fork.git", "HEAD")),
        ("git@x.example:fork.git#a/b", ("git@x.example:fork.git", "a/b")),
        ("main", (UPSTREAM, "main")),
        ("v1.0..main", (UPSTREAM, "v1.0..main")),
    ],
)
def test_words_name_a_repository_and_a_revision(source: str, found: tuple[str, str]) -> None:
    assert incoming._located(source, UPSTREAM) == found


@pytest.mark.parametrize(
    ("url", "subject", "link"),
    [
        (UPSTREAM, "Fix it (#12)", f"{UPSTREAM}/pull/12"),
        (f"{UPSTREAM}.git", "Fix it (#12)", f"{UPSTREAM}/pull/12"),
        (UPSTREAM, "Fix it", f"{UPSTREAM}/commit/{SHA}"),
        # A fork's numbers are not upstream's.
        ("https://github.com/x/vllm", "Fix it (#12)", f"https://github.com/x/vllm/commit/{SHA}"),
        ("git@github.com:x/vllm.git", "Fix it", None),
    ],
)
def test_a_commit_is_linked(url: str, subject: str, link: str | None) -> None:
    found = incoming._upstream(url, SHA, subject, ORIGIN)
    assert found == ((("Upstream", link),) if link else ())


def test_a_short_commit_is_known_to_clones_only(tmp_path: Path) -> None:
    with pytest.raises(UnknownRevisionError, match="cannot be asked"):
        incoming._full(UPSTREAM, "0123456")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    name = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    words = ["git", "-C", tmp_path, *name, "commit", "-q", "--allow-empty", "-m", "one"]
    subprocess.run(words, check=True)
    head = subprocess.run(
        ["git", "-C", tmp_path, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert incoming._full(str(tmp_path), head[:7]) == head
    assert incoming._full(str(tmp_path), "HEAD") == head
    assert incoming._full(UPSTREAM, "main") == "main"


def test_a_branch_as_one_patch_is_compared_as_a_whole_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = git.init_bare(tmp_path)
    new = [
        git.NewCommit(message=name, changes=[git.Change(path="x.py", data=name.encode())])
        for name in ("base", "one", "two")
    ]
    base, *commits = repo.write_commits("refs/heads/main", None, new)
    whole, asked = repo.diff(base, commits[-1]), []
    monkeypatch.setattr(git.Repo, "diff", lambda _, *span: asked.append(span) or whole)
    mail = incoming._squashed(repo, base, commits, str(tmp_path), ORIGIN)
    assert (mail.subject, mail.body, mail.diff) == ("one", "* one\n* two", whole)
    assert asked == [(base, commits[-1])]
