"""Killed anywhere, started twice, on a full or read-only disk: the old state or the new, and the next run succeeds.

`DSPATCH_KILLS` is the number of random instants, `DSPATCH_KILL_STEP=1` tries every boundary;
`ci/kill_fuzz.py` tries thousands of instants.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch import errors
from tests import killing
from tests.killing import ACTIONS, V2, Scene, by_name
from tests.support import disk

STEP = int(os.environ.get("DSPATCH_KILL_STEP", "11"))
INSTANTS = int(os.environ.get("DSPATCH_KILLS", "300"))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with killing.scene(tmp_path_factory.mktemp("killed")) as made:
        for action in ACTIONS:
            made.learn(action)
        yield made


@pytest.fixture(autouse=True)
def _same_cache(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSPATCH_CACHE", "DSPATCH_WORK"):
        monkeypatch.setenv(name, scene.bench.environment[name])


@pytest.mark.parametrize("name", ["apply", "apply-cold", "unapply", "build-wheel"])
def test_killed_at_every_boundary(name: str, scene: Scene) -> None:
    ended = list(killing.at_every_touch(scene, by_name(name), STEP))
    assert len(ended) > 1
    assert ended[-1].code == 0


def test_killed_at_random_instants(scene: Scene) -> None:
    found = Counter(ended.code for _, ended in killing.at_random(scene, INSTANTS, seed=0))
    assert found[-9] > INSTANTS // 2


DIE = "import os, signal\ndef die(): os.kill(os.getpid(), signal.SIGKILL)\n"
FILE_BY_FILE = f"""{DIE}
from dspatch.carry.editing import folder
def change(place, changes):
    for path, data in changes.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        die()
folder.change = change
"""
NOT_RECOVERABLE = f"""{DIE}
from dspatch import worktree
def advance(repo, pristine, commit, *, clean):
    repo.reset_hard(commit)
    die()
worktree._advance = advance
"""


@pytest.mark.parametrize(("name", "fault"), [("import", FILE_BY_FILE), ("apply", NOT_RECOVERABLE)])
def test_a_write_that_is_not_one_step_is_caught(
    name: str, fault: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene, "fault", fault)
    with pytest.raises(AssertionError, match=f"{name} killed"):
        scene.kill(by_name(name))


# -- two at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["apply", "apply-cold", "refresh", "import", "export", "rebase"])
def test_two_processes_at_once(other: str, scene: Scene) -> None:
    action = by_name(other)
    scene.restore(action)
    started = [scene.bench.start(*words) for words in (by_name("apply").words, action.words)]
    said = [process.communicate() for process in started]
    allowed = {0, errors.LockedError.exit_code, errors.EditedTreeError.exit_code}
    assert {process.returncode for process in started} <= allowed, said
    assert not any("Traceback" in err for _, err in said)
    if started[1].returncode != 0:
        assert scene.zygote.run(*action.words).code == 0
    new, tree = scene.new[other]
    assert scene.owned() == new
    done = scene.zygote.run("apply", *V2)
    assert done.code == 0, done.said
    if other != "rebase":  # whose tree is of v1.0's patches and those of this job's own
        assert scene.tree(action) in (tree, scene.tree(action))


# -- a disk that takes nothing ------------------------------------------------------------------------


def test_a_cache_that_may_only_be_read_serves_what_it_holds(scene: Scene, tmp_path: Path) -> None:
    scene.restore(by_name("apply"))
    wanted = json.loads(scene.bench.run("apply", *V2, "--json"))["tree"]
    scene.bench.run("build-wheel")
    shutil.rmtree(scene.root / "work/jobs")
    with disk(tmp_path / "disk", "64m") as place:
        shutil.copytree(scene.root / "cache", place / "cache", symlinks=True)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        cache = {"DSPATCH_CACHE": str(place / "cache")}
        assert json.loads(scene.bench.run("apply", *V2, "--json", **cache))["tree"] == wanted
        scene.bench.run("build-wheel", **cache)
        scene.bench.run("wheel", "verify", **cache)
        scene.bench.run("patch", "list", *V2, **cache)
        # What it does not hold cannot be put there.
        patches = scene.root / "work/patches"
        shutil.copytree(scene.root / "kept" / "work/patches", patches, dirs_exist_ok=True)
        mine = patches / "vllm/mine/patch.toml"
        mine.write_text(mine.read_text() + "\n")
        before = scene.owned()
        message = scene.bench.run("apply", *V2, code=errors.NotWritableError.exit_code, **cache)
        assert "DSPATCH_CACHE" in message
        assert scene.owned() == before


@pytest.mark.parametrize("name", ["apply", "import", "refresh", "rebase", "export"])
def test_a_full_disk_changes_nothing_and_the_next_run_succeeds(
    name: str, scene: Scene, tmp_path: Path
) -> None:
    action = by_name(name)
    scene.restore(action)
    new, _ = scene.new[name]
    with disk(tmp_path / "disk", "24m") as place:
        for part in ("work", "data", "exported"):
            shutil.copytree(scene.root / part, place / part, symlinks=True)
        moved = {"DSPATCH_WORK": str(place / "work"), "DSPATCH_DATA": str(place / "data")}
        words = [str(place / "exported") if word == "exported" else word for word in action.words]
        there = replace(scene, root=place)
        old = there.owned()
        if name == "refresh":  # the tree's objects are looked for where the cache is
            there.edit()
        room = os.statvfs(place)
        (place / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize))
        message = scene.bench.run(*words, code=errors.DiskFullError.exit_code, **moved)
        assert "next:" in message
        (place / "filler").unlink()
        assert there.owned() == old
        scene.bench.run(*words, **moved)
        assert there.owned() == new


@pytest.fixture
def refilled(scene: Scene) -> Iterator[Scene]:
    """The scene, for tests that empty its cache."""
    yield scene
    scene.restore(by_name("apply-cold"))
    scene.bench.run("apply", *V2)


def test_a_lock_that_a_killed_git_left_in_the_cache(scene: Scene) -> None:
    scene.restore(by_name("apply"))
    locks = [
        scene.root / "cache/git/vllm.git" / f"{name}.lock"
        for name in ("refs/applying", "packed-refs")
    ]
    for lock in locks:
        lock.touch()
    scene.bench.run("apply", *V2)
    assert (scene.owned(), scene.tree(by_name("apply"))) == scene.new["apply"]
    assert not locks[0].exists()


def test_several_locks_that_one_command_takes(refilled: Scene) -> None:
    """Importing a release moves a ref and deletes another, in one transaction."""
    refilled.restore(by_name("apply-cold"))
    refilled.bench.run("apply", "--engine", "vllm", "--rev", "v1.0")
    kept = refilled.root / "cache/git/vllm.git"
    (ref,) = (path for path in (kept / "refs/pristine/sdist").iterdir())
    ref.unlink()
    for lock in (
        f"refs/pristine/sdist/{ref.name}",
        f"refs/importing/sdist/{ref.name}",
        "packed-refs",
    ):
        (kept / f"{lock}.lock").parent.mkdir(parents=True, exist_ok=True)
        (kept / f"{lock}.lock").touch()
    refilled.bench.run("apply", "--engine", "vllm", "--rev", "v1.0")
    assert not list(kept.rglob("*.lock"))


def test_a_cache_that_a_killed_git_init_left(scene: Scene) -> None:
    scene.restore(by_name("apply-cold"))
    (scene.root / "cache/git/vllm.git/refs").mkdir(parents=True)
    scene.bench.run("apply", *V2)
    assert scene.tree(by_name("apply-cold")) == scene.new["apply-cold"][1]


def test_locks_that_a_killed_git_left_in_a_tree(scene: Scene) -> None:
    scene.restore(by_name("apply"))
    tree = scene.root / "work/jobs/vllm-2.0-cpu-deepseek/tree/.git"
    for name in ("refs/dspatch/moving", "refs/dspatch/patched", "HEAD", "index"):
        (tree / f"{name}.lock").touch()
    scene.bench.run("apply", *V2)
    assert scene.tree(by_name("apply")) == scene.new["apply"][1]


def test_a_tree_whose_cache_is_gone(refilled: Scene) -> None:
    """Nobody can tell what was edited in it: it is left alone, and taken over when that is allowed."""
    refilled.restore(by_name("apply"))
    shutil.rmtree(refilled.root / "cache/git")
    message = refilled.bench.run("apply", *V2, code=errors.EditedTreeError.exit_code)
    assert "the cache no longer holds" in message
    assert "--discard-edits" in message
    refilled.bench.run("apply", *V2, "--discard-edits")
    assert refilled.tree(by_name("apply")) == refilled.new["apply"][1]
