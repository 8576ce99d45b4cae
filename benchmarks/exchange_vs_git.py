"""A series of 60 patches in and out: `dspatch patch import` and `export` beside `git am` and `git format-patch`.

    python benchmarks/exchange_vs_git.py --rev v0.27.1 --patches 60 --rounds 5

Whole processes, taking turns. The series is that of series_vs_peers.py. An import merges every mail onto the patched
tree, writes a patch folder for each and applies the result once more to be sure; `git am` writes the commits. An
export is made of patches that were applied before, as `git format-patch` finds its commits made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from series_vs_peers import DSPATCH, GIT, Bench, Figures, run, timed

FORMAT = ["--zero-commit", "--no-signature", "--full-index", "--binary", "--no-stat", "-q"]


class Exchange:
    """The series as mails and as commits, and the words that take it in and out."""

    def __init__(self, root: Path, rev: str, count: int) -> None:
        self.bench = Bench(root, rev, count)
        self.own = root / "work/patches/vllm"
        self.where = ["--engine", "vllm", "--rev", rev]
        self.out = root / "out"

    def command(self, name: str) -> tuple[list[str], Path]:
        mails = sorted(str(path) for path in self.bench.mails.iterdir())
        return {
            "import": ([*DSPATCH, "patch", "import", *self.where, str(self.bench.mails)], self.bench.root),
            "am": ([*GIT, "am", "-q", *mails], self.bench.root / "am"),
            "export": ([*DSPATCH, "patch", "export", *self.where, "-o", str(self.out)], self.bench.root),
            "format-patch": (
                [*GIT, "format-patch", *FORMAT, "-o", str(self.out), f"{self.bench.pristine}..HEAD"],
                self.bench.root / "source",
            ),
        }[name]  # fmt: skip

    def reset(self, name: str) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        if name == "am":
            self.bench.reset("am")
        if name == "import":
            shutil.rmtree(self.own)
            self.own.mkdir()
            (self.own / "series").write_text("!*\n")
            shutil.rmtree(self.bench.root / "cache", ignore_errors=True)

    def check(self, name: str, count: int) -> None:
        if name in ("export", "format-patch"):
            assert len(list(self.out.glob("*.patch"))) == count, name
        elif name == "import":
            assert len(list(self.own.glob("*/patch.toml"))) == count
        else:
            tree = run(["git", "rev-parse", "HEAD^{tree}"], self.bench.root / "am").strip()
            assert tree == self.bench.wanted


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rev", default="v0.27.1")
    options.add_argument("--patches", type=int, default=60)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    names = ["import", "am", "export", "format-patch"]
    found = {name: Figures() for name in names}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        exchange = Exchange(Path(folder), chosen.rev, chosen.patches)
        for number in range(chosen.rounds):
            for name in names:
                exchange.reset(name)
                command, place = exchange.command(name)
                ms, cpu, mib, _ = timed(command, place)
                exchange.check(name, chosen.patches)
                found[name].ms.append(ms)
                found[name].cpu.append(cpu)
                found[name].mib.append(mib)
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr)
    for name, figures in found.items():
        print(f"{name:<14}{figures}")
    for ours, peer in (("import", "am"), ("export", "format-patch")):
        ratio = [a / b for a, b in zip(found[ours].ms, found[peer].ms, strict=True)]
        print(
            f"{ours} / {peer}: {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})"
        )
    print(f"load when it began {load:.1f}, when it ended {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
