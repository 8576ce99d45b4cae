"""A diff onto a tree: strict where each hunk has one place, merged three-way, or a conflict that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import git, threeway, treefiles
from dspatch.git import Change, Repo
from dspatch.threeway import Labels, MergeConflictError, apply_diff
from tests.support import numbered

Tree = dict[str, bytes]


class Bench:
    def __init__(self, folder: Path) -> None:
        self.repo: Repo = git.init_bare(folder / "bare")

    def tree(self, files: Tree) -> str:
        changes = [Change(path=path, data=data) for path, data in files.items()]
        commit = self.repo.write_commits(
            "refs/t", None, [git.NewCommit(message="t", changes=changes)]
        )
        return self.repo.run("rev-parse", f"{commit[0]}^{{tree}}")

    def diff(self, old: Tree, new: Tree) -> str:
        return self.repo.diff(self.tree(old), self.tree(new))

    def apply(self, diff: str, onto: Tree, **options: object) -> threeway.Outcome:
        return apply_diff(self.repo, diff, treefiles.of_tree(self.repo, self.tree(onto)), **options)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_diff_onto_its_own_base_is_strict(bench: Bench) -> None:
    diff = bench.diff({"a.py": numbered()}, {"a.py": numbered((5, "new\n"))})
    done = bench.apply(diff, {"a.py": numbered()})
    assert done.how == "strict"
    assert done.changes["a.py"].data == numbered((5, "new\n"))


def test_lines_that_moved_are_strict_while_their_place_is_the_only_one(bench: Bench) -> None:
    diff = bench.diff({"a.py": numbered()}, {"a.py": numbered((20, "new\n"))})
    done = bench.apply(diff, {"a.py": b"more\n" * 50 + numbered()})
    assert done.how == "strict"
    assert done.changes["a.py"].data == b"more\n" * 50 + numbered((20, "new\n"))


def test_context_that_fits_two_functions_is_merged_into_the_right_one(bench: Bench) -> None:
    body = "    a\n    b\n    c\n    old\n    d\n    e\n    f\n"
    first, second = f"def first():\n{body}\n\n", f"def second():\n{body}\n\n"
    filler = "".join(f"# {n}\n" for n in range(30))
    base = (filler + first + filler + second + filler).encode()
    wanted = (filler + first + filler + second.replace("old", "new") + filler).encode()
    diff = bench.diff({"a.py": base}, {"a.py": wanted})
    # Upstream moved both so that git's nearest place would be the wrong function.
    onto = (filler + first + filler * 3 + second + filler).encode()
    done = bench.apply(diff, {"a.py": filler.encode() + onto})
    assert done.how == "merged"
    data = done.changes["a.py"].data or b""
    assert data.index(b"new") > data.index(b"second")
    assert data.count(b"new") == 1


def test_without_the_base_two_places_are_a_conflict(bench: Bench, tmp_path: Path) -> None:
    body = b"def f():\n    a\n    b\n    c\n    old\n    d\n    e\n    f\n"
    diff = bench.diff({"a.py": body}, {"a.py": body.replace(b"old", b"new")})
    other = Bench(tmp_path / "other")
    with pytest.raises(MergeConflictError) as error:
        other.apply(diff, {"a.py": body + body})
    kinds = [conflict.kind for conflict in error.value.conflicts]
    assert kinds == ["many places", "no base"]
    assert "fits 2 places" in error.value.why


def test_the_base_can_be_provided(bench: Bench, tmp_path: Path) -> None:
    old, new = {"a.py": numbered()}, {"a.py": numbered((20, "new\n"))}
    diff = bench.diff(old, new)
    other = Bench(tmp_path / "other")
    onto = {"a.py": numbered((18, "theirs\n"), (2, "x\n"))}
    asked = []

    def provide() -> bool:
        asked.append(True)
        other.tree(old)
        return True

    with pytest.raises(MergeConflictError):
        other.apply(diff, onto)
    done = other.apply(
        bench.diff(old, {"a.py": numbered((20, "new\n"))}), {"a.py": numbered((30, "x\n"))}
    )
    assert done.how == "strict"
    with pytest.raises(MergeConflictError, match=r"a\.py"):
        other.apply(diff, {"a.py": numbered((20, "theirs\n"))}, provide=provide)
    assert asked


def test_a_file_renamed_upstream_is_followed(bench: Bench) -> None:
    diff = bench.diff({"old/a.py": numbered()}, {"old/a.py": numbered((20, "new\n"))})
    done = bench.apply(diff, {"new/a.py": numbered((2, "theirs\n"))})
    assert done.how == "merged"
    assert done.moved == {"old/a.py": "new/a.py"}
    assert done.changes["new/a.py"].data == numbered((2, "theirs\n"), (20, "new\n"))


def test_a_rename_to_another_name_is_found_with_the_paths_of_the_base(bench: Bench) -> None:
    diff = bench.diff({"rope.py": numbered()}, {"rope.py": numbered((20, "new\n"))})
    onto = {"rotary/base.py": numbered((2, "theirs\n")), "other.py": b"x\n"}
    with pytest.raises(MergeConflictError, match=r"rope\.py"):
        bench.apply(diff, onto)
    done = bench.apply(diff, onto, base_paths=lambda: ["rope.py", "other.py"])
    assert done.moved == {"rope.py": "rotary/base.py"}


def test_a_file_deleted_upstream_is_a_conflict_that_says_so(bench: Bench) -> None:
    diff = bench.diff({"a.py": numbered(), "b": b""}, {"a.py": numbered((20, "new\n")), "b": b""})
    with pytest.raises(MergeConflictError) as error:
        bench.apply(diff, {"b": b""}, labels=Labels(base="v1", ours="v2", theirs="fix"))
    assert "deleted in v2 and modified in fix" in error.value.why


def test_a_conflict_has_markers_with_the_names_of_the_sides(bench: Bench) -> None:
    diff = bench.diff({"a.py": numbered()}, {"a.py": numbered((20, "new\n"))})
    with pytest.raises(MergeConflictError) as error:
        bench.apply(
            diff,
            {"a.py": numbered((20, "theirs\n"))},
            labels=Labels(base="v1", ours="v2", theirs="fix"),
        )
    marked = (error.value.marked["a.py"].data or b"").decode()
    assert "<<<<<<< v2\ntheirs\n||||||| v1\nline 20\n=======\nnew\n>>>>>>> fix\n" in marked


def test_what_is_there_already_is_upstream(bench: Bench) -> None:
    diff = bench.diff({"a.py": numbered()}, {"a.py": numbered((20, "new\n"))})
    assert bench.apply(diff, {"a.py": numbered((20, "new\n"), (1, "more\n"))}).how == "upstream"


def test_fuzz_is_refused_unless_it_is_asked_for(bench: Bench, tmp_path: Path) -> None:
    diff = bench.diff({"a.py": numbered()}, {"a.py": numbered((20, "new\n"))})
    onto = {"a.py": numbered((18, "theirs\n"))}
    other = Bench(tmp_path / "other")
    with pytest.raises(MergeConflictError, match=r"a\.py"):
        other.apply(diff, onto)
    done = other.apply(diff, onto, context=1)
    assert done.how == "fuzzy"
    assert done.changes["a.py"].data == numbered((18, "theirs\n"), (20, "new\n"))
