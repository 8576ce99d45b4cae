"""Folders change as a whole: killed anywhere, what stands afterwards is the old state or the new."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from dspatch import paths
from dspatch.carry.editing import folder
from dspatch.errors import LockedError
from tests.killer import killed_everywhere

OLD = {"series": b"a\nb\n", "a/patch.toml": b"a1\n", "b/patch.toml": b"b1\n"}
NEW = {"series": b"a\nc\n", "a/patch.toml": b"a2\n", "c/patch.toml": b"c1\n", "c/v1.diff": b"d\n"}
CHANGE = """
from pathlib import Path
from dspatch.carry.editing import folder
root = Path({root!r})
files = {files!r}
with folder.editing(root):
    folder.change(root, {{
        root / "series": files["series"],
        root / "a/patch.toml": files["a/patch.toml"],
        root / "b/patch.toml": None,
        root / "c/patch.toml": files["c/patch.toml"],
        root / "c/v1.diff": files["c/v1.diff"],
        root.parent / "templates/x.j2": b"new",
    }})
"""


def lay(root: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def held(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_killed_at_every_touch_a_change_has_happened_or_not(tmp_path: Path) -> None:
    root = tmp_path / "patches"
    code = CHANGE.format(root=str(root), files=NEW)
    template = tmp_path / "templates" / "x.j2"

    def prepare() -> None:
        lay(root, OLD)
        lay(template.parent, {"x.j2": b"old"})

    seen = []
    for _ in killed_everywhere(code, prepare, DSPATCH_CACHE=str(tmp_path / "cache")):
        with folder.editing(root):
            found = held(root), template.read_bytes()
        assert found in ((OLD, b"old"), (NEW, b"new"))
        assert not [path for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())]
        seen.append(found[0] == NEW)
    assert seen == sorted(seen)
    assert {True, False} == set(seen)


def test_killed_at_every_touch_a_replaced_folder_is_the_old_or_the_new(tmp_path: Path) -> None:
    root = tmp_path / "out"
    imports = "from pathlib import Path\nfrom dspatch.carry.editing import folder\n"
    code = f"{imports}folder.replace(Path({str(root)!r}), {NEW!r})"
    seen = []
    for _ in killed_everywhere(code, lambda: lay(root, OLD), DSPATCH_CACHE=str(tmp_path / "cache")):
        # Looked at without any help: nobody has to finish anything.
        assert held(root) in (OLD, NEW)
        seen.append(held(root) == NEW)
    assert {True, False} == set(seen)
    folder.replace(root, NEW)
    assert [path.name for path in tmp_path.iterdir() if "staging" in path.name] == []


def test_a_folder_that_cannot_be_exchanged_is_changed_by_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path / "out", OLD)
    monkeypatch.chdir(tmp_path / "out")
    folder.replace(Path(), NEW)
    assert held(Path.cwd()) == NEW
    assert Path.cwd().samefile(tmp_path / "out")


def test_a_new_folder_may_be_anywhere(tmp_path: Path) -> None:
    folder.replace(tmp_path / "not" / "yet" / "there", {"deep/er": b"x"})
    assert held(tmp_path / "not/yet/there") == {"deep/er": b"x"}


def test_another_process_s_folder_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "LOCK_SECONDS", 0.05)
    with folder.editing(tmp_path):
        (lock,) = (paths.cache() / "locks").glob("*.lock")
    with FileLock(lock), pytest.raises(LockedError, match="another dspatch"):
        enter(tmp_path)


def test_what_was_cut_off_is_finished_by_the_next_look(tmp_path: Path) -> None:
    lay(tmp_path / "p", OLD)
    journal = tmp_path / "p" / folder.JOURNAL
    lay(journal, {"plan.json": b'[["a/patch.toml", "0"], ["b/patch.toml", null]]', "0": b"a2\n"})
    folder.finish(tmp_path / "p")
    assert held(tmp_path / "p") == {"series": b"a\nb\n", "a/patch.toml": b"a2\n"}


def enter(root: Path) -> None:
    with folder.editing(root):
        pass
