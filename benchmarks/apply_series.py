"""Warm `dspatch apply` beside `git am` of the same series in exported form, and start-up times.

    python benchmarks/apply_series.py --rev v0.27.1 --rounds 15

Both start from the pristine tree in a work tree of their own, and end with the same tree hash. Rounds
are interleaved; each figure is a whole process, in milliseconds: median (minimum to maximum).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DSPATCH = [sys.executable, "-m", "dspatch"]
AM = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", "am", "--quiet"]


def timed(command: list[str], cwd: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)
    return (time.perf_counter() - start) * 1000


def text(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def series(rev: str, rounds: int, folder: Path) -> None:
    apply = [*DSPATCH, "apply", "--engine", "vllm", "--rev", rev]
    done = json.loads(
        subprocess.run([*apply, "--json"], cwd=folder, check=True, capture_output=True).stdout
    )
    tree = Path(done["path"])
    pristine = done["checkout"]["commit"]
    subprocess.run(
        ["git", "format-patch", "-q", "-o", folder / "mbox", f"{pristine}..HEAD"],
        cwd=tree,
        check=True,
    )
    patches = sorted(str(path) for path in (folder / "mbox").iterdir())
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", tree, clone], check=True)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        subprocess.run([*DSPATCH, "unapply"], cwd=folder, check=True, capture_output=True)
        ours.append(timed(apply, folder))
        subprocess.run(["git", "reset", "-q", "--hard", pristine], cwd=clone, check=True)
        theirs.append(timed([*AM, *patches], clone))
    trees = {
        subprocess.run(
            ["git", "rev-parse", "HEAD^{tree}"], cwd=place, check=True, capture_output=True
        ).stdout
        for place in (tree, clone)
    }
    assert len(trees) == 1, "the two did not end with the same tree"
    print(f"dspatch apply, warm   {text(ours)} ms")
    print(f"git am, {len(patches)} patches     {text(theirs)} ms")
    print(f"ratio                 {statistics.median(ours) / statistics.median(theirs):.2f}")


def startup(rounds: int, folder: Path) -> None:
    script = Path(sys.executable).with_name("dspatch")
    commands = {
        "dspatch --help": [str(script), "--help"] if script.exists() else [*DSPATCH, "--help"],
        "pip --version": [sys.executable, "-m", "pip", "--version"],
        "git --version": ["git", "--version"],
        "python -c pass": [sys.executable, "-c", "pass"],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(timed(command, folder))
    for name, values in found.items():
        print(f"{name:<20}  {text(values)} ms")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rev", default="v0.27.1")
    options.add_argument("--rounds", type=int, default=15)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["DSPATCH_WORK"] = str(Path(name) / "work")
        series(chosen.rev, chosen.rounds, Path(name))
        startup(chosen.rounds, Path(name))


if __name__ == "__main__":
    main()
