"""A cold series of 60 patches on vLLM: dspatch beside `git am`, `quilt push -a` and `patch -p1`, in turns.

    python benchmarks/series_vs_peers.py --rev v0.27.1 --patches 60 --rounds 9

The series is generated: real files of the release, several patches a file, several hunks a patch. Everybody starts
from the pristine tree in a work tree of their own and must end with the same files. dspatch starts without the tree
that it keeps by the hash of its inputs. `core` is reading, checking and applying the series in git objects, without
the start of Python, receipts and the move of the work tree; `command` is all of `dspatch apply`. Milliseconds and
peak MiB of whole processes: median (minimum to maximum).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dspatch import paths

DSPATCH = [sys.executable, "-m", "dspatch"]
GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
CORE = """
import json, sys, time
from dspatch import apply, checkout, pins, series
from dspatch.stages.request import served
release = checkout.checkout(pins.load("vllm", sys.argv[1]))
models = served(())
start = time.perf_counter()
tree = apply.apply_series(series.layered("vllm"), release, target="cpu", variants=models)
ms = (time.perf_counter() - start) * 1000
print(json.dumps({"ms": ms, "tree": tree.tree, "how": sorted({p.how for p in tree.patches})}))
"""
PATCH = """\
subject = "Generated {name}"
reason = "A benchmark."
upstream = "never: a benchmark"
drop-when = "the benchmark is over"
targets = ["cpu"]
"""


@dataclass
class Figures:
    """What one tool took in each round: milliseconds, those of them on a processor, peak MiB."""

    ms: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        own = f"{_spread(self.cpu):>20} ms of processor"
        return f"{_spread(self.ms):>22} ms {own} {_spread(self.mib):>14} MiB"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def run(command: list[str], cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def timed(command: list[str], cwd: Path) -> tuple[float, float, float, str]:
    """Milliseconds, those on a processor, peak MiB and stdout of a process with all its children."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        ms = (time.perf_counter() - start) * 1000
        assert status == 0, command
        out.seek(0)
        cpu = (usage.ru_utime + usage.ru_stime) * 1000
        return ms, cpu, usage.ru_maxrss / 1024, out.read().decode()


def generate(tree: Path, count: int, seed: int) -> list[str]:
    """Commit a series of that many patches, and return their diffs."""
    dice = random.Random(seed)
    big = [p for p in sorted(tree.glob("vllm/**/*.py")) if 8_000 < p.stat().st_size < 90_000]
    files = dice.sample(big, max(4, count // 3))
    diffs = []
    for number in range(count):
        for path in dice.sample(files, dice.choice([1, 1, 2, 3])):
            lines = path.read_text().split("\n")
            for _ in range(dice.randint(1, 3)):
                at = dice.randrange(len(lines))
                lines[at : at + dice.randint(0, 2)] = [
                    f"# patch {number} was here, {dice.random()}"
                ]
            path.write_text("\n".join(lines))
        run([*GIT, "commit", "-qam", f"Generated {number:03}\n\nA benchmark.\n"], tree)
        diffs.append(run([*GIT, "show", "--format=", "--full-index", "--binary", "HEAD"], tree))
    return diffs


def own_layer(folder: Path, rev: str, diffs: list[str]) -> None:
    names = [f"generated-{number:03}" for number in range(len(diffs))]
    for name, diff in zip(names, diffs, strict=True):
        (folder / name).mkdir(parents=True)
        (folder / name / "patch.toml").write_text(PATCH.format(name=name))
        (folder / name / f"{rev}.diff").write_text(diff)
    (folder / "series").write_text("!*\n" + "".join(f"{name}\n" for name in names))


class Bench:
    """The pristine tree three times, and the series in each tool's own form."""

    def __init__(self, root: Path, rev: str, count: int) -> None:
        self.root, self.rev = root, rev
        os.environ["DSPATCH_WORK"] = str(root / "work")
        # Modules compiled beforehand, as pip leaves them.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(root / "compiled")
        words = [*DSPATCH, "apply", "--engine", "vllm", "--rev", rev, "--json"]
        applied = json.loads(run(words, root))
        self.pristine = applied["checkout"]["commit"]
        source = root / "source"
        run(["git", "clone", "-q", "--shared", "--no-checkout", applied["path"], str(source)], root)
        run(["git", "checkout", "-q", "-b", "series", self.pristine], source)
        diffs = generate(source, count, seed=1)
        self.wanted = run(["git", "rev-parse", "HEAD^{tree}"], source).strip()
        own_layer(root / "work/patches/vllm", rev, diffs)
        self.mails = root / "mails"
        run(["git", "format-patch", "-q", "-o", str(self.mails), f"{self.pristine}..HEAD"], source)
        for name in ("am", "quilt", "patch"):
            run(
                ["git", "clone", "-q", "--shared", "--no-checkout", str(source), str(root / name)],
                root,
            )
            run(["git", "checkout", "-q", "--detach", self.pristine], root / name)
        shutil.copytree(self.mails, root / "quilt/patches")
        names = sorted(path.name for path in self.mails.iterdir())
        (root / "quilt/patches/series").write_text("".join(f"{name}\n" for name in names))

    def reset(self, name: str) -> None:
        if name in ("core", "command"):
            shutil.rmtree(paths.cache() / "applied", ignore_errors=True)
            if name == "command":
                subprocess.run(
                    [*DSPATCH, "unapply"], cwd=self.root, check=False, capture_output=True
                )
            return
        place = self.root / name
        run(["git", "checkout", "-q", "--detach", self.pristine], place)
        run(["git", "reset", "-q", "--hard", self.pristine], place)
        run(["git", "clean", "-qfdx", "-e", "patches"], place)

    def command(self, name: str) -> list[str]:
        mails = sorted(str(path) for path in self.mails.iterdir())
        loop = 'for mail in "$@"; do patch -p1 -s -F0 < "$mail" || exit 1; done'
        return {
            "core": [sys.executable, "-c", CORE, self.rev],
            "command": [*DSPATCH, "apply", "--engine", "vllm", "--rev", self.rev, "--json"],
            "am": [*GIT, "am", "-q", *mails],
            "quilt": ["quilt", "push", "-a", "-q", "--fuzz=0"],
            "patch": ["sh", "-c", loop, "sh", *mails],
        }[name]

    def check(self, name: str, out: str) -> float | None:
        """Hold the result against the series' own tree; the core's own milliseconds."""
        if name in ("core", "command"):
            found = json.loads(out)
            assert found["tree"] == self.wanted, name
            if name == "core":
                assert found["how"] == ["strict"]
            return found.get("ms")
        place = self.root / name
        run(["git", "add", "vllm"], place)
        assert run(["git", "write-tree"], place).strip() == self.wanted, name
        return None


def measure(
    bench: Bench, names: list[str], rounds: int, told: Callable[[str], None]
) -> dict[str, Figures]:
    found = {name: Figures() for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            bench.reset(name)
            ms, cpu, mib, out = timed(
                bench.command(name),
                bench.root / name if name in ("am", "quilt", "patch") else bench.root,
            )
            found[name].ms.append(bench.check(name, out) or ms)
            found[name].cpu.append(cpu)
            found[name].mib.append(mib)
        told(f"round {number + 1} of {rounds}")
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rev", default="v0.27.1")
    options.add_argument("--patches", type=int, default=60)
    options.add_argument("--rounds", type=int, default=9)
    chosen = options.parse_args()
    names = ["core", "command", "am", *(["quilt"] if shutil.which("quilt") else []), "patch"]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), chosen.rev, chosen.patches)
        load = os.getloadavg()[0]
        found = measure(bench, names, chosen.rounds, lambda line: print(line, file=sys.stderr))
    if "quilt" not in names:
        print("quilt: not run, it is not installed")
    titles = {
        "core": "dspatch, core",
        "command": "dspatch apply",
        "am": "git am",
        "quilt": "quilt push -a",
        "patch": "patch -p1, a process a patch",
    }
    for name, figures in found.items():
        print(f"{titles[name]:<30}{figures}")
    for name in ("core", "command"):
        ratio = [a / b for a, b in zip(found[name].ms, found["am"].ms, strict=True)]
        print(
            f"{titles[name]} / git am: {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})"
        )
    print(
        f"load when it began {load:.1f}, when it ended {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    main()
