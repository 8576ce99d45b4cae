"""Kill dspatch at thousands of random instants on a mini upstream; for the nightly.

    python ci/kill_fuzz.py --instants 10000 --jobs 2

Each job has a small engine with two releases, patches of all kinds and a full cache in a folder of its own, and kills
apply, unapply, build-wheel and patch export, import, refresh and rebase in turn, git and all. What is left must be the
old state or the new, and the next run must succeed. The first failure ends it, with the seed that repeats it and the
folder as it was left.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import killing

TOLD_EVERY = 100


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--instants", type=int, default=10_000)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options.add_argument("--seed", type=int, default=int(time.time()))
    chosen = options.parse_args()
    share = -(-chosen.instants // chosen.jobs)
    work = [(number, share, chosen.seed + number) for number in range(chosen.jobs)]
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        ended = pool.starmap(kill, work)
    total = sum(ended, Counter[str]())
    for name, count in sorted(total.items()):
        print(f"{name:<28}{count}")
    failed = total["failed"] > 0
    print(
        f"{'FAILED' if failed else 'ok'} in {time.monotonic() - started:.0f} s, seed {chosen.seed}"
    )
    return int(failed)


def kill(number: int, instants: int, seed: int) -> Counter[str]:
    """Kill commands at that many instants; how many of each were hit, and whether all went well."""
    root = Path(tempfile.mkdtemp(prefix=f"kill-fuzz-{number}-"))
    found: Counter[str] = Counter()
    try:
        with killing.scene(root) as scene:
            kept = ("DSPATCH_CACHE", "DSPATCH_WORK")
            os.environ |= {key: scene.bench.environment[key] for key in kept}
            for action in killing.ACTIONS:
                scene.learn(action)
            for action, done in killing.at_random(scene, instants, seed):
                found[f"{action.name}, {'killed' if done.code else 'ended'}"] += 1
                if found.total() % TOLD_EVERY == 0:
                    print(f"job {number}: {found.total()} of {instants}", flush=True)
    except AssertionError as error:
        print(f"job {number}, seed {seed}, instant {found.total()}: {error}\nleft in {root}")
        found["failed"] += 1
    else:
        shutil.rmtree(root)
    return found


if __name__ == "__main__":
    sys.exit(main())
