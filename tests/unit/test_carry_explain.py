"""A conflict explained: the lines, the release, the commit, and where the code went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch import diffs
from dspatch.carry.rebase import codeplace, explain, history
from dspatch.carry.rebase.codeplace import Trees
from dspatch.carry.rebase.explain import Context, Read, Release
from dspatch.carry.rebase.history import Span
from dspatch.diffs import FileDiff
from dspatch.git import Repo
from tests.support import LOADS, MODEL, SORTED, git
from tests.unit.test_carry_upstreamed import Tree, change


def context(new: dict[str, str], *between: tuple[str, dict[str, str]]) -> Context:
    releases = [Release(rev=rev, read=Tree(files).read) for rev, files in between]
    return Context(
        trees=Trees(old=Tree({"m.py": MODEL}), new=Tree(new)),
        pristine=Tree({"m.py": MODEL}),
        old_rev="v1",
        new_rev="v9",
        releases=releases,
    )


def explained(folder: Path, new: dict[str, str], *between: tuple[str, dict[str, str]]) -> str:
    diff = change(folder, {"m.py": MODEL}, {"m.py": LOADS}).diff
    return "\n".join(map(str, explain.explain(diff, context(new, *between))))


def test_the_release_that_first_changed_the_lines(tmp_path: Path) -> None:
    old, later = {"m.py": "# a header\n" + MODEL}, {"m.py": SORTED}
    text = explained(tmp_path, later, ("v2", old), ("v3", old), ("v4", later), ("v5", old))
    assert text == (
        "hunk 1 of m.py, in `Model.load`: its lines changed in v4 (v3 still has them):"
        " `for name, data in weights:`"
    )


def test_without_releases_between_it_is_the_new_revision_itself(tmp_path: Path) -> None:
    assert "changed in v9 (v1 still has them)" in explained(tmp_path, {"m.py": SORTED})


def test_releases_are_read_no_further_than_the_change(tmp_path: Path) -> None:
    def read(path: str) -> bytes:
        raise AssertionError("read too far")

    found = context({"m.py": SORTED}, ("v2", {"m.py": SORTED}))
    found.releases = [*found.releases, Release(rev="v3", read=read)]
    diff = change(tmp_path, {"m.py": MODEL}, {"m.py": LOADS}).diff
    assert explain.explain(diff, found)[0].since == "v2"
    assert explain.explain(diff, found)[0].since == "v2"


def test_lines_inserted_into_the_context_are_told(tmp_path: Path) -> None:
    new = MODEL.replace("            self.copy", "            check(name)\n            self.copy")
    assert "`check(name)`" in explained(tmp_path, {"m.py": new})


def test_the_first_release_that_git_cannot_merge_onto_is_found_by_halves(tmp_path: Path) -> None:
    header, later = {"m.py": "#\n" + MODEL.replace("import os", "import re")}, {"m.py": SORTED}
    found = context(later, *((f"v{n}", header if n < 7 else later) for n in range(2, 9)))
    asked: list[bytes | None] = []

    def merges(file: FileDiff, read: Read) -> bool:
        asked.append(read("m.py"))
        return b"sorted" not in (asked[-1] or b"")

    found.merges = merges
    (reason,) = explain.explain(change(tmp_path, {"m.py": MODEL}, {"m.py": LOADS}).diff, found)
    assert (reason.since, reason.stuck) == ("v7", "v7")
    assert len(asked) <= 4
    assert "git merges it" not in str(reason)
    assert "git merges it onto releases before v8" in str(replace(reason, stuck="v8"))


def test_a_hunk_in_a_table_names_it(tmp_path: Path) -> None:
    old = "A = 1\nTABLE = {\n" + "".join(f"    'k{n}': {n},\n" for n in range(9)) + "}\n"
    diff = change(tmp_path, {"m.py": old}, {"m.py": old.replace("'k4': 4", "'k4': 5")}).diff
    hunk = diffs.read(diff)[0].hunks[0]
    assert codeplace.symbol_at(old.encode(), hunk) == "TABLE"


def test_a_file_that_was_renamed(tmp_path: Path) -> None:
    text = explained(tmp_path, {"core/m.py": SORTED}, ("v2", {"core/m.py": MODEL}))
    assert text.startswith("m.py, in `Model.load`: the file is gone since v2")
    assert text.endswith("the file is now core/m.py")


def test_a_symbol_that_moved(tmp_path: Path) -> None:
    new = {"m.py": "import os\n", "core/m.py": "x = 1\n" * 99 + MODEL}
    assert "`Model.load` is now in core/m.py" in explained(tmp_path, new)
    searched = context({"m.py": "", "other.py": MODEL})
    found = {"load": ["other.py"]}
    searched.trees = replace(searched.trees, search=lambda word: found.get(word, []))
    diff = change(tmp_path / "2", {"m.py": MODEL}, {"m.py": LOADS}).diff
    assert explain.explain(diff, searched)[0].moved == "other.py"


def test_releases_that_cannot_show_a_file_are_passed_over(tmp_path: Path) -> None:
    found = context({"m.py": SORTED}, ("v3", {"m.py": SORTED}))
    found.releases = [Release(rev="v2", read=lambda path: None, sees=lambda path: False)]
    diff = change(tmp_path, {"m.py": MODEL}, {"m.py": LOADS}).diff
    assert explain.explain(diff, found)[0].since == "v9"


def test_lines_of_an_earlier_patch_are_not_looked_for_in_releases(tmp_path: Path) -> None:
    mine = MODEL.replace("names = set()", "names = set()  # ours")
    found = context({"m.py": SORTED}, ("v2", {"m.py": MODEL}), ("v3", {"m.py": SORTED}))
    new = SORTED.replace("names = set()", "names = set()  # ours")
    found.trees = Trees(old=Tree({"m.py": mine}), new=Tree({"m.py": new}))
    patched = mine.replace("self.copy(name, data)\n", "self.copy(name, data.float())\n")
    diff = change(tmp_path, {"m.py": mine}, {"m.py": patched}).diff
    assert explain.explain(diff, found)[0].since == "v3"


def test_a_new_file_that_upstream_has_since(tmp_path: Path) -> None:
    diff = change(tmp_path, {"m.py": MODEL}, {"m.py": MODEL, "n.py": "mine = 1\n"}).diff
    new = {"m.py": MODEL, "n.py": "theirs = 1\n"}
    found = explain.explain(diff, context(new, ("v2", {}), ("v3", new)))
    assert str(found[0]) == "n.py: upstream has a file of that name since v3"


def test_hunks_that_still_fit_need_no_reason(tmp_path: Path) -> None:
    assert explained(tmp_path, {"m.py": "# more\n" + MODEL}) == ""


class Clone:
    """An upstream clone with a history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = Repo(folder)
        folder.mkdir()
        git(folder, "init", "-q", "-b", "main")

    def commit(self, message: str, text: str, path: str = "m.py") -> str:
        (self.folder / path).write_text(text)
        git(self.folder, "add", ".")
        git(self.folder, "commit", "-qm", message)
        return self.repo.run("rev-parse", "HEAD")

    def span(self, old: str, new: str = "main") -> Span:
        found = history.span(self.repo, ["nothing", old], [new])
        assert found is not None
        return found


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


def test_the_commit_that_changed_the_lines(tmp_path: Path, clone: Clone) -> None:
    first = clone.commit("one", MODEL)
    clone.commit("a header", "# a header\n" + MODEL)
    second = clone.commit("Sort the weights (#77)", "# a header\n" + SORTED)
    clone.commit("more", SORTED)
    found = context({"m.py": SORTED})
    found.history = clone.span(first)
    diff = change(tmp_path / "d", {"m.py": MODEL}, {"m.py": LOADS}).diff
    (reason,) = explain.explain(diff, found)
    assert reason.commit is not None
    assert reason.commit.oid == second
    assert "Sort the weights (#77)" in str(reason)


def test_the_commit_of_the_same_patch_id(tmp_path: Path, clone: Clone) -> None:
    first = clone.commit("one", MODEL)
    clone.commit("elsewhere", "\n" * 9 + MODEL)
    same = clone.commit("The same (#78)", "\n" * 9 + LOADS)
    clone.commit("later", "\n" * 9 + LOADS + "# end\n")
    diff = change(tmp_path / "d", {"m.py": MODEL}, {"m.py": LOADS}).diff
    found = history.same_change(clone.span(first), diff, ["m.py"])
    assert found is not None
    assert (found.oid, found.subject) == (same, "The same (#78)")
    other = diff.replace("data.float()", "data.half()")
    assert history.same_change(clone.span(first), other, ["m.py"]) is None
    assert history.same_change(clone.span(first), "", ["m.py"]) is None


def test_a_commit_that_was_taken_back_is_not_upstream(tmp_path: Path, clone: Clone) -> None:
    first = clone.commit("one", MODEL)
    clone.commit("the same", LOADS)
    clone.commit("revert", MODEL)
    diff = change(tmp_path / "d", {"m.py": MODEL}, {"m.py": LOADS}).diff
    assert history.same_change(clone.span(first), diff, ["m.py"]) is None


def test_no_history_no_span(tmp_path: Path, clone: Clone) -> None:
    clone.commit("one", MODEL)
    assert history.span(clone.repo, ["nothing"], ["main"]) is None
    assert history.span(clone.repo, ["main"], ["nothing"]) is None
