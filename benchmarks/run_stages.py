"""Where the time of `dspatch run` goes: each stage's share, with an empty cache, a full one, and nothing to do.

python benchmarks/run_stages.py --rev v0.27.1            # downloads and environments included
python benchmarks/run_stages.py --rev v0.27.1 --cache ~/.cache/dspatch    # without the first row
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = [sys.executable, "-m", "dspatch", "run", "--engine", "vllm", "--target", "cpu", "--json"]


def row(name: str, arguments: list[str], cache: Path, work: Path) -> None:
    environment = {**os.environ, "DSPATCH_CACHE": str(cache), "DSPATCH_WORK": str(work)}
    done = subprocess.run([*RUN, *arguments], env=environment, check=True, stdout=subprocess.PIPE)
    seconds = json.loads(done.stdout)["seconds"]
    total = sum(seconds.values())
    shares = "  ".join(
        f"{stage} {took:.1f} s ({took / total:.0%})" for stage, took in seconds.items()
    )
    print(f"{name:<14} {total:7.1f} s   {shares}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rev", default="v0.27.1")
    options.add_argument(
        "--cache", type=Path, help="a full cache; without it the first run fills one"
    )
    chosen = options.parse_args()
    rev = ["--rev", chosen.rev]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = chosen.cache or folder / "cache"
        if chosen.cache is None:
            row("empty cache", rev, cache, folder / "first")
        row("full cache", rev, cache, folder / "second")
        row("nothing to do", rev, cache, folder / "second")


if __name__ == "__main__":
    main()
