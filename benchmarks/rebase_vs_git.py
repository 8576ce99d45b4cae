"""A series of generated patches taken to another vLLM: `dspatch patch rebase` beside `git rebase`.

    python benchmarks/rebase_vs_git.py --rev v0.27.1 --onto v0.32.0 --patches 60

git skips each patch in conflict and goes on; dspatch is asked with --dry-run, which also explains every conflict
from the releases between. Both must take the same patches, but for those that dspatch leaves waiting because they
rest on one in conflict. Seconds and peak MiB of whole processes, one round each, the trees at hand.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from series_vs_peers import DSPATCH, GIT, generate, own_layer, run


def prepare(root: Path, rev: str, onto: str, count: int) -> tuple[Path, str, str]:
    """The series of one revision as commits in a work tree, and as the own layer of dspatch."""
    os.environ["DSPATCH_WORK"] = str(root / "work")
    found = [
        json.loads(run([*DSPATCH, "apply", "--rev", each, "--json"], root)) for each in (rev, onto)
    ]
    old, new = (each["checkout"]["commit"] for each in found)
    source = root / "source"
    run(["git", "clone", "-q", "--shared", "--no-checkout", found[0]["path"], str(source)], root)
    run(["git", "fetch", "-q", found[1]["path"], new], source)
    run(["git", "checkout", "-q", "-b", "series", old], source)
    own_layer(root / "work/patches/vllm", rev, generate(source, count, seed=1))
    return source, old, new


def by_git(source: Path, old: str, new: str) -> tuple[float, set[str]]:
    """Seconds of `git rebase`, and the patches that it took."""
    start = time.perf_counter()
    words = ["rebase", "-q", "--onto", new, old, "series"]
    done = subprocess.run([*GIT, *words], cwd=source, check=False, capture_output=True)
    while done.returncode:
        skip = [*GIT, "rebase", "--skip"]
        done = subprocess.run(skip, cwd=source, check=False, capture_output=True)
    seconds = time.perf_counter() - start
    subjects = run(["git", "log", "--format=%s", f"{new}..series"], source).splitlines()
    return seconds, {subject.replace("Generated ", "generated-") for subject in subjects}


def by_dspatch(root: Path, rev: str, onto: str) -> tuple[float, float, dict[str, dict]]:
    """Seconds and peak MiB of a dry run, and every patch's row."""
    start = time.perf_counter()
    words = [*DSPATCH, "patch", "rebase", "--rev", rev, "--onto", onto, "--dry-run", "--json"]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(words, cwd=root, stdout=out, stderr=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        out.seek(0)
        rows = json.loads(out.read())["patches"]
    mine = {row["patch"]: row for row in rows if row["patch"].startswith("generated-")}
    return seconds, usage.ru_maxrss / 1024, mine


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rev", default="v0.27.1")
    options.add_argument("--onto", default="v0.32.0")
    options.add_argument("--patches", type=int, default=60)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source, old, new = prepare(root, chosen.rev, chosen.onto, chosen.patches)
        git_seconds, taken = by_git(source, old, new)
        seconds, peak, rows = by_dspatch(root, chosen.rev, chosen.onto)
    status = Counter(row["status"] for row in rows.values())
    print(f"git rebase, skipping:     {git_seconds:6.1f} s, {len(taken)} of {len(rows)} patches")
    print(f"dspatch rebase --dry-run: {seconds:6.1f} s, {peak:.0f} MiB, {dict(status)}")
    ours = {name for name, row in rows.items() if row["status"] in ("applies", "upstream")}
    print(f"taken by git only: {sorted(taken - ours)}")
    print(f"taken by dspatch only: {sorted(ours - taken)}")
    reasons = [row["reasons"] for row in rows.values() if row["status"] == "conflict"]
    told = [found for found in reasons if any(each["since"] for each in found)]
    print(f"conflicts with the release that changed their lines: {len(told)} of {len(reasons)}")


if __name__ == "__main__":
    sys.exit(main())
