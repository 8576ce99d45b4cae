"""Edits that are not committed, given to the patch whose lines they touch."""

from __future__ import annotations

from pathlib import Path

from dspatch.carry.editing import chain, loose
from dspatch.git import Change, NewCommit, init_bare

BASE = b"a = 1\n\x0c\nb = 2\nc = 3\n"


def test_a_form_feed_is_no_line_of_its_own(tmp_path: Path) -> None:
    repo = init_bare(tmp_path)
    texts = {
        "pristine": b"",
        "x\n\nPatch: first\n": BASE,
        "x\n\nPatch: second\n": BASE.replace(b"3", b"4"),
        "edited": BASE.replace(b"3", b"5"),
    }
    commits = [
        NewCommit(message=message, changes=[Change(path="x.py", data=data)])
        for message, data in texts.items()
    ]
    pristine, _, head, edited = repo.write_commits("refs/heads/main", None, commits)
    tree = repo.resolve(f"{edited}^{{tree}}") or ""
    links = chain.read(repo, pristine, head)
    (edit,) = loose.links_of(repo, (pristine, head), tree, into=None, links=links)
    assert edit.patch == "second"
