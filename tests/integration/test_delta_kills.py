"""A delta that is killed while it works, at every operation that changes the disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import deltakit
from tests.unit.deltakit import Bench, files


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The base installed by pip, not compiled: the files that count are fewer."""
    folder = tmp_path_factory.mktemp("delta")
    base, overlay, delta = deltakit.wheels(folder)
    site = deltakit.install(base, folder / "venv", "--no-compile")
    return Bench(base=base, overlay=overlay, delta=delta, site=site)


# Runs a delta and dies before the nth operation that changes the disk, which is after the one before it.
KILLER = """
import os, runpy, sys
count, at = 0, int(sys.argv[1])
def deadly(function):
    def run(*words, **named):
        global count
        count += 1
        if count == at: os._exit(9)
        return function(*words, **named)
    return run
for name in ("replace", "rename", "unlink", "mkdir", "rmdir", "chmod", "fsync", "remove"):
    setattr(os, name, deadly(getattr(os, name)))
sys.argv = sys.argv[2:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print(count)
    sys.exit(end.code)
"""


@pytest.mark.parametrize("direction", [(), ("--undo",)])
def test_killed_at_any_boundary_it_is_old_or_finished_by_the_next_run(
    made: Bench, tmp_path: Path, direction: tuple[str, ...]
) -> None:
    bench = deltakit.copied(made, tmp_path / "old")
    if direction:
        bench.run()
    goal = deltakit.copied(bench, tmp_path / "new")
    goal.run(*direction)
    new, old = files(goal.site), files(bench.site)
    killer = tmp_path / "killer.py"
    killer.write_text(KILLER)
    seen = set()
    at, status = 0, 9
    while status == 9:
        at += 1
        site = tmp_path / str(at)
        shutil.copytree(bench.site, site, symlinks=True)
        words = [sys.executable, killer, str(at), bench.delta.path]
        words += ["--site-packages", site]
        status = subprocess.run([*words, *direction], capture_output=True, check=False).returncode
        found = {path: told for path, told in files(site).items() if "dspatch-delta" not in path}
        stopped = (site / ".mini.dspatch-delta/journal.json").exists()
        seen.add("stopped" if stopped else "old" if found == old else "new")
        assert stopped or found in (old, new), at
        # Either way leads to one of the two states, whatever the kill left.
        back = ["--undo"] if not direction else []
        finish = [sys.executable, bench.delta.path, "--site-packages", site]
        subprocess.run([*finish, *(back if at % 2 else direction)], capture_output=True, check=True)
        assert files(site) == (old if at % 2 else new), at
        shutil.rmtree(site)
    assert status == 0
    assert seen == {"old", "stopped", "new"}
    assert at > 40
