"""A rebase killed anywhere is where it was, or where it was going; nothing that was recorded is lost.

Every 53rd boundary is tried; `DSPATCH_KILL_STEP=1` tries all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dspatch import errors
from dspatch.series import digest_of
from tests import killer
from tests.integration.rebasekit import FREE, patches, release
from tests.integration.test_flow import Bench, Prepared, prepared
from tests.integration.test_rebase import DONE, REBASE, STOPPED, form, resolve, stopped, tree
from tests.support import SORTED, git

STEP = int(os.environ.get("DSPATCH_KILL_STEP", "53"))
CONTINUE = ("patch", "rebase", "--continue")
ABORT = ("patch", "rebase", "--abort")


def two_releases(bench: Bench) -> None:
    release(bench, "1.0")
    release(bench, "3.0", {"vllm/model.py": SORTED, "vllm/free.py": "zero = 0\n" + FREE})
    patches(bench)
    stopped(bench, *REBASE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("made"), two_releases)


@pytest.fixture
def bench(made: Prepared, tmp_path: Path) -> Iterator[Bench]:
    with made.bench(tmp_path) as bench:
        bench.run("apply", "--rev", "v1.0")
        yield bench


def killed(bench: Bench, words: tuple[str, ...], prepare: Callable[[], object]) -> Iterator[int]:
    code = f"from dspatch.cli import main\ntry:\n    main({list(words)!r})\nexcept SystemExit:\n    pass\n"
    names = [name for name in bench.environment if name.startswith(("DSPATCH_", "PIP_"))]
    variables = {name: bench.environment[name] for name in names}
    yield from killer.killed_everywhere(code, prepare, step=STEP, **variables)


class Snapshot:
    """The work folder and the patches of a bench, to be put back as they are now."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.kept = Path(tempfile.mkdtemp(prefix="kept-", dir=bench.root))
        for name in ("work", "data"):
            shutil.copytree(bench.root / name, self.kept / name, symlinks=True)

    def restore(self) -> None:
        for name in ("work", "data"):
            shutil.rmtree(self.bench.root / name, ignore_errors=True)
            shutil.copytree(self.kept / name, self.bench.root / name, symlinks=True)

    def patches(self) -> str:
        return digest_of([self.kept / "data"])


def data(bench: Bench) -> str:
    return digest_of([bench.root / "data"])


def state(bench: Bench) -> bool:
    return (tree(bench).parent / "rebase.json").exists()


def check_stopped(bench: Bench) -> None:
    assert git(tree(bench), "status", "--porcelain") == "UU vllm/model.py\n"
    assert ">>>>>>> loads\n" in (tree(bench) / "vllm/model.py").read_text()


def check_done(bench: Bench) -> None:
    assert git(tree(bench), "status", "--porcelain") == ""
    assert (tree(bench) / "vllm/model.py").read_text() == DONE
    assert form(bench, "loads").exists()
    assert not list(bench.root.rglob("data/**/.*"))


def check_as_before(bench: Bench, before: Snapshot) -> None:
    assert not tree(bench).exists()
    assert not state(bench)
    assert data(bench) == before.patches()


def test_killed_while_it_goes_to_the_conflict(bench: Bench) -> None:
    before = Snapshot(bench)
    for touches in killed(bench, REBASE, before.restore):
        assert data(bench) == before.patches()
        if touches % 2 and state(bench):
            bench.run(*ABORT)
            check_as_before(bench, before)
            continue
        bench.run(*REBASE, code=STOPPED)
        check_stopped(bench)
        bench.run(*ABORT)
        check_as_before(bench, before)


def test_killed_while_it_goes_on(bench: Bench) -> None:
    before = Snapshot(bench)
    stopped(bench, *REBASE)
    resolve(bench)
    at_stop = Snapshot(bench)
    for touches in killed(bench, CONTINUE, at_stop.restore):
        if state(bench) and touches % 2:
            bench.run(*ABORT)
            check_as_before(bench, before)
            continue
        if state(bench):
            bench.run(*CONTINUE)
        check_done(bench)


def test_killed_while_it_is_undone(bench: Bench) -> None:
    before = Snapshot(bench)
    stopped(bench, *REBASE)
    resolve(bench)
    at_stop = Snapshot(bench)
    for _ in killed(bench, ABORT, at_stop.restore):
        if state(bench):
            bench.run(*ABORT)
        check_as_before(bench, before)


def test_killed_while_it_goes_back_to_an_applied_tree(bench: Bench) -> None:
    """The tree of a job that stood patched before."""
    series = bench.root / "data/patches/vllm/series"
    whole = series.read_text()
    moved = [bench.root / "data/patches/vllm" / name for name in ("loads", "uses")]
    series.write_text("free\n")
    for folder in moved:
        folder.rename(bench.root / folder.name)
    applied = bench.json("apply", "--rev", "v3.0")
    series.write_text(whole)
    for folder in moved:
        (bench.root / folder.name).rename(folder)
    stopped(bench, *REBASE)
    resolve(bench)
    at_stop = Snapshot(bench)
    for _ in killed(bench, ABORT, at_stop.restore):
        if state(bench):
            bench.run(*ABORT)
        assert git(tree(bench), "rev-parse", "HEAD^{tree}").strip() == applied["tree"]
        assert git(tree(bench), "status", "--porcelain") == ""
        assert data(bench) == at_stop.patches()
        bench.run("build-wheel", "--rev", "v3.0")


def test_killed_at_random_instants(bench: Bench) -> None:
    before = Snapshot(bench)
    dice = random.Random(0)
    for _ in range(int(os.environ.get("DSPATCH_KILLS", "3"))):
        before.restore()
        for words, check in ((REBASE, check_stopped), (CONTINUE, check_done)):
            process = bench.start(*words)
            time.sleep(dice.uniform(0.0, 2.0))
            bench.kill(process)
            if words is REBASE:
                bench.run(*words, code=STOPPED)
                check(bench)
                resolve(bench)
            elif state(bench):
                bench.run(*words)
        check_done(bench)


def test_two_at_once_come_to_one_result(bench: Bench) -> None:
    processes = [bench.start(*REBASE) for _ in range(3)]
    for process in processes:
        process.communicate()
    codes = {process.returncode for process in processes}
    assert codes <= {STOPPED, errors.LockedError.exit_code}
    assert STOPPED in codes
    check_stopped(bench)
