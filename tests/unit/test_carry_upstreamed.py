"""What is upstream already, whole, in part, by its lines or by what they mean; and what only looks so."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.carry.upstreamed import hunkfind, upstreamed
from dspatch.carry.upstreamed.parts import Change
from tests.support import dedent

HEAD = "import os\n\n\n"
ONE = dedent(
    '''
    def one(x):
        """The first."""
        y = x + 1
        z = y * 2
        return z


    '''
)
TWO = dedent(
    """
    def two(x):
        y = x + 1
        z = y * 2
        return y, z


    """
)
TAIL = "NAMES = {\n    'a': 1,\n    'b': 2,\n}\n"
OLD = HEAD + ONE + TWO + TAIL


class Tree:
    """Files in memory."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = {path: text.encode() for path, text in files.items()}

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def mode(self, path: str) -> str:
        return "100644"

    def paths(self) -> Collection[str]:
        return self.files


def change(folder: Path, old: dict[str, str], new: dict[str, str]) -> Change:
    """A change as git diffs it."""
    for side, files in (("a", old), ("b", new)):
        (folder / side).mkdir(parents=True)
        for path, text in files.items():
            (folder / side / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / side / path).write_text(text)
    words = ["git", "diff", "--no-index", "--full-index", "--no-prefix", "a", "b"]
    diff = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False).stdout
    return Change(
        diff=diff,
        before={path: text.encode() for path, text in old.items()},
        after={path: text.encode() for path, text in new.items()},
    )


def judged(
    folder: Path, old: dict[str, str], new: dict[str, str], target: dict[str, str]
) -> upstreamed.Verdict:
    return upstreamed.judge(change(folder, old, new), Tree(target))


GUARD = "    if x is None:\n        raise ValueError('x')\n"
NEW = OLD.replace(
    "    y = x + 1\n    z = y * 2\n    return z",
    GUARD + "    y = x + 1\n    z = y * 2\n    return z",
)


def test_a_change_that_is_there_reverse_applies(tmp_path: Path) -> None:
    found = judged(tmp_path, {"m.py": OLD}, {"m.py": NEW}, {"m.py": "# more\n" + NEW})
    assert found.whole
    assert found.tier == "reverse-applies"
    assert "1 of 1 hunks upstream" in found.why
    assert "line" in found.why


def test_a_change_that_is_not_there_is_not_upstream(tmp_path: Path) -> None:
    found = judged(tmp_path, {"m.py": OLD}, {"m.py": NEW}, {"m.py": OLD})
    assert found.tier is None
    assert found.why == ""
    assert [part.state for part in found.parts] == ["applies"]


def three(text: str) -> str:
    return (
        text.replace("import os\n", "import os\nimport sys\n")
        .replace("return z", "return z + 1")
        .replace("'b': 2", "'b': 3")
    )


def test_two_of_three_hunks(tmp_path: Path) -> None:
    pad = "".join(f"x{n} = {n}\n" for n in range(12))
    old = OLD.replace(HEAD, HEAD + pad).replace(TAIL, pad.replace("x", "y") + TAIL)
    partly = three(old).replace("return z + 1", "return z")
    found = judged(tmp_path, {"m.py": old}, {"m.py": three(old)}, {"m.py": partly})
    assert found.partly
    assert found.tier == "hunks"
    assert found.why.startswith("2 of 3 hunks upstream: hunk 1 of m.py at line 1; hunk 3 of m.py")
    rest = upstreamed.remainder(
        change(tmp_path / "r", {"m.py": old}, {"m.py": three(old)}).diff, found
    )
    assert rest.count("@@ -") == 1
    (tmp_path / "m.py").write_text(partly)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "apply"], cwd=tmp_path, input=rest, text=True, check=True)
    assert (tmp_path / "m.py").read_text() == three(old)


LISTED = "a = [\n    1,\n    2,\n]\nb = 3\nc = 4\nd = 5\ne = 6\n"


def without(line: str) -> str:
    return LISTED.replace(line, "")


@pytest.mark.parametrize(
    ("name", "gone", "target", "whole"),
    [
        ("gone, its context is there", "c = 4\n", "z = 0\n" + without("c = 4\n"), True),
        ("still there", "c = 4\n", LISTED, False),
        ("still there, its context changed", "c = 4\n", LISTED.replace("b = 3", "b = 7"), False),
        ("moved within the file", "c = 4\n", "c = 4\n" + without("c = 4\n"), False),
        ("last line, still there", "e = 6\n", LISTED, False),
        ("last line, gone", "e = 6\n", without("e = 6\n"), True),
        ("last line, replaced", "e = 6\n", LISTED.replace("e = 6\n", "e = 7\n"), False),
        ("first line, replaced", "a = [\n", "q = [\n" + without("a = [\n"), False),
        ("the lines around it are gone too", "c = 4\n", "z = 0\n", False),
        ("the file is gone", "c = 4\n", None, False),
    ],
)
def test_a_change_that_only_deletes(
    name: str, gone: str, target: str | None, whole: bool, tmp_path: Path
) -> None:
    files = {"m.txt": target} if target is not None else {"other.txt": LISTED}
    found = judged(tmp_path, {"m.txt": LISTED}, {"m.txt": without(gone)}, files)
    assert found.whole == whole, name
    assert not found.partly


def test_context_that_fits_two_functions_is_not_taken_for_the_change(tmp_path: Path) -> None:
    old = ONE + TWO
    new = ONE + TWO.replace("return y, z", "return z, y")
    there = ONE.replace("return z", "return z, y") + TWO
    assert judged(tmp_path, {"m.py": old}, {"m.py": new}, {"m.py": there}).tier is None


def test_the_same_lines_in_another_function_are_another_change(tmp_path: Path) -> None:
    """The function that the patch changes is gone; another one always had such lines."""
    body = (
        "".join(f"    v{n} = {n}\n" for n in range(5))
        + "    b = 2\n    c = 3\n    d = 4\n    e = 5\n"
    )
    old = "def first():\n" + body.replace("b = 2", "b = 5") + "\n\ndef second():\n" + body
    old += "    return b\n"
    new = old.replace("    b = 2\n", "    b = 5\n")
    found = judged(
        tmp_path, {"m.txt": old}, {"m.txt": new}, {"m.txt": old.split("\n\n\n")[0] + "\n"}
    )
    assert found.tier is None


def test_the_same_hunk_twice_is_there_when_both_are(tmp_path: Path) -> None:
    body = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\n"
    old = body + "\n\n\n\n" + body
    new = old.replace("d = 4\n", "d = 4\nextra = 1\n")
    once = body.replace("d = 4\n", "d = 4\nextra = 1\n") + "\n\n\n\n" + body
    assert judged(tmp_path / "1", {"m.txt": old}, {"m.txt": new}, {"m.txt": new}).whole
    assert judged(tmp_path / "2", {"m.txt": old}, {"m.txt": new}, {"m.txt": once}).tier is None


def test_a_change_that_seems_to_be_there_twice_is_not_told(tmp_path: Path) -> None:
    body = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\n"
    new = body.replace("d = 4\n", "d = 4\nextra = 1\n")
    assert judged(tmp_path / "1", {"m.txt": body}, {"m.txt": new}, {"m.txt": new}).whole
    assert judged(tmp_path / "2", {"m.txt": body}, {"m.txt": new}, {"m.txt": new * 2}).tier is None


def test_an_equal_function_counts_though_it_is_written_otherwise(tmp_path: Path) -> None:
    written = dedent(
        '''
        def one(
            x,
        ):
            """Another docstring."""
            # upstream's own comment
            if x is None:
                raise ValueError("x")
            y = x + 1
            z = (y * 2)
            return z
        '''
    )
    found = judged(tmp_path, {"m.py": OLD}, {"m.py": NEW}, {"m.py": "import re\n" + written})
    assert found.whole
    assert found.tier == "symbols"
    assert "`one`" in found.why
    other = written.replace("y * 2", "y * 3")
    assert judged(tmp_path / "2", {"m.py": OLD}, {"m.py": NEW}, {"m.py": other}).tier is None


def test_an_equal_function_counts_in_another_file(tmp_path: Path) -> None:
    target = {
        "m.py": "from core.m import one\n",
        "core/m.py": "import math\n\n\n" + NEW[len(HEAD) :],
    }
    found = judged(tmp_path, {"m.py": OLD}, {"m.py": NEW}, target)
    assert found.whole
    assert "`one` in core/m.py" in found.why
    change_ = change(tmp_path / "2", {"m.py": OLD}, {"m.py": NEW})
    renamed = {"m.py": "", "elsewhere.py": target["core/m.py"]}
    assert upstreamed.judge(change_, Tree(renamed)).tier is None
    searched = upstreamed.judge(change_, Tree(renamed), search=lambda word: ["elsewhere.py"])
    assert searched.whole


def test_a_removed_method_counts_only_while_its_class_is_there(tmp_path: Path) -> None:
    old = "class A:\n    x = 1\n\n    def keep(self):\n        return 1\n\n    def drop(self):\n        return 2\n"
    new = old[: old.index("\n    def drop")]
    written = "class A:\n    x = 1\n    y = 2\n\n    def keep(self): return 1\n"
    assert judged(tmp_path / "1", {"m.py": old}, {"m.py": new}, {"m.py": written}).whole
    gone = "class B:\n    x = 1\n"
    assert judged(tmp_path / "2", {"m.py": old}, {"m.py": new}, {"m.py": gone}).tier is None


def test_an_import_that_stands_elsewhere_is_not_inserted_again(tmp_path: Path) -> None:
    old = "import os\nimport re\n\n\nA = 1\nB = 2\nC = 3\n"
    new = old.replace("import re\n", "import re\nimport sys\n")
    there = old + "D = 4\n\nimport sys\n"
    found = judged(tmp_path, {"m.py": old}, {"m.py": new}, {"m.py": there})
    assert found.whole
    assert found.tier == "symbols"


def test_an_entry_of_a_dictionary_counts_wherever_it_stands(tmp_path: Path) -> None:
    old = {"m.py": "NAMES = {\n    'a': 1,\n    'b': 2,\n}\n"}
    new = {"m.py": "NAMES = {\n    'a': 1,\n    'new': 9,\n    'b': 2,\n}\n"}
    there = {"m.py": "NAMES = {'z': 0, 'b': 3, 'new': 9}\n"}
    assert judged(tmp_path / "1", old, new, there).whole
    assert judged(tmp_path / "2", old, new, {"m.py": "NAMES = {'new': 8, 'b': 3}\n"}).tier is None


def test_new_deleted_and_renamed_files(tmp_path: Path) -> None:
    new_file = change(tmp_path / "1", {}, {"n.py": "x = 1\n"})
    assert upstreamed.judge(new_file, Tree({"n.py": "x = 1\n"})).whole
    assert upstreamed.judge(new_file, Tree({"n.py": "x  =  1  # same\n"})).whole
    assert upstreamed.judge(new_file, Tree({"n.py": "x = 2\n"})).tier is None
    assert upstreamed.judge(new_file, Tree({})).tier is None
    deleted = change(tmp_path / "2", {"d.py": "x = 1\n"}, {})
    assert upstreamed.judge(deleted, Tree({})).whole
    assert upstreamed.judge(deleted, Tree({"d.py": "x = 1\n"})).tier is None
    moved = upstreamed.judge(deleted, Tree({"sub/d.py": "x = 1\n"}))
    assert moved.tier is None


def test_a_target_that_is_no_python_is_judged_by_lines_alone(tmp_path: Path) -> None:
    assert judged(tmp_path, {"m.py": OLD}, {"m.py": NEW}, {"m.py": "def one(:\n"}).tier is None


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "}\n"]), min_size=0, max_size=12)


@given(before=LINES, after=LINES)
def test_of_any_change_both_sides_are_told_apart(before: list[str], after: list[str]) -> None:
    """On the changed file nothing applies a second time; on the old one nothing is upstream."""
    import tempfile

    if before == after:
        return
    with tempfile.TemporaryDirectory() as folder:
        old, new = {"m.txt": "".join(before)}, {"m.txt": "".join(after)}
        found = change(Path(folder), old, new)
    on_old = upstreamed.judge(found, Tree(old))
    assert not on_old.whole
    for part in upstreamed.judge(found, Tree(new)).parts:
        assert part.state != "applies" or part.number > 0


def test_lines_keep_every_byte() -> None:
    data = "a\r\nb\x0cc\nüd".encode() + b"\xff"
    assert "".join(hunkfind.lines_of(data)).encode("utf-8", "surrogateescape") == data
    assert len(hunkfind.lines_of(data)) == 3
