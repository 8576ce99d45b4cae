"""Time and memory of an overlay wheel beside `wheel unpack` + `wheel pack` of the same wheel.

    python benchmarks/overlay_wheel.py BASE_WHEEL SDIST [--rounds 5] [--json out.json]

The two take turns in one run, each as processes of its own, timed from start to exit with imports
and with the files on disk at the end; memory is the peak resident size of the largest process.
The overlay does more than its peer: it compares every file with the source, changes eight of
them, adds two and writes a bill of materials. Needs `wheel` (pip install '.[test]').
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dspatch.archive import extract_sdist
from dspatch.wheel.files import FolderFiles
from dspatch.wheel.names import WheelName, overlay_version
from dspatch.wheel.plan import Accepted, OverlayPlan, PatchRecord

EPOCH = "1700000000"
PATCHED_FILES = 8
ACCEPTED = (Accepted(path="*", reason="a benchmark accepts every difference"),)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one way took once: wall time in seconds, peak resident size in MiB."""

    seconds: float
    peak_mib: float


def main() -> None:
    """Measure, print a table, and write every measurement to `--json`."""
    words = _parser().parse_args()
    if words.worker:
        _overlay(words.base, words.source, Path(words.worker))
        return
    costs: dict[str, list[Cost]] = {"overlay": [], "unpack and pack": []}
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as folder:
        tree = Path(folder) / "tree"
        extract_sdist(words.source, tree)
        for at in range(words.rounds + 1):
            round_costs = _round(words.base, tree, Path(folder) / str(at))
            # The first round fills the page cache for both.
            for name, cost in round_costs.items() if at else ():
                costs[name].append(cost)
    _report(costs)
    if words.json:
        values = {name: [asdict(cost) for cost in each] for name, each in costs.items()}
        words.json.write_text(json.dumps(values, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("base", type=Path)
    parser.add_argument("source", type=Path, help="the sdist")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def _round(base: Path, tree: Path, folder: Path) -> dict[str, Cost]:
    """One turn of each; what they write is removed before the other starts."""
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as out:
        overlay = _timed([sys.executable, __file__, base, tree, "--worker", out])
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as out:
        wheel = [sys.executable, "-m", "wheel"]
        unpack = _timed([*wheel, "unpack", base, "--dest", out])
        (unpacked,) = Path(out).iterdir()
        pack = _timed([*wheel, "pack", unpacked, "--dest-dir", out])
    peer = Cost(seconds=unpack.seconds + pack.seconds, peak_mib=max(unpack.peak_mib, pack.peak_mib))
    return {"overlay": overlay, "unpack and pack": peer}


def _timed(command: list[str | Path]) -> Cost:
    start = time.perf_counter()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        # wait4 gives this child's own peak; RUSAGE_CHILDREN would give the largest so far.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} exited with status {process.returncode}")
    return Cost(seconds=time.perf_counter() - start, peak_mib=usage.ru_maxrss / 1024)


def _overlay(base: Path, tree: Path, dest: Path) -> None:
    from dspatch.wheel.overlay import build_overlay

    source = FolderFiles(tree)
    package = WheelName.parse(base.name).project.partition("-")[0]
    python = [p for p in source if p.startswith(f"{package}/") and p.endswith("_utils.py")]
    changes: dict[str, bytes | None] = {
        path: source[path] + b"\n# changed\n" for path in python[:PATCHED_FILES]
    }
    changes |= {f"{package}/added_{at}.py": b"ADDED = True\n" for at in range(2)}
    plan = OverlayPlan(
        base=base,
        source=source,
        changes=changes,
        name=package,
        version=overlay_version(str(WheelName.parse(base.name).version), "cpu", "a1" * 32),
        accepted=ACCEPTED,
        patches=(_patch(source, changes),),
        version_file=f"{package}/_version.py",
        epoch=int(EPOCH),
    )
    build_overlay(plan, dest)


def _patch(source: FolderFiles, changes: dict[str, bytes | None]) -> PatchRecord:
    diffs = []
    for path, new in changes.items():
        before, after = (
            (data or b"").decode().splitlines(True) for data in (source.get(path), new)
        )
        diffs.append(f"diff --git a/{path} b/{path}\n")
        diffs += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    return PatchRecord(
        name="benchmark",
        subject="Change some files",
        reason="to be measured",
        upstream="never: a benchmark",
        sha256="00" * 32,
        diff="".join(diffs),
    )


def _report(costs: dict[str, list[Cost]]) -> None:
    print(f"{'':17}{'seconds: median (min to max)':>32}{'peak MiB':>12}")
    for name, each in costs.items():
        seconds = [cost.seconds for cost in each]
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"{name:17}{spread:>32}{max(cost.peak_mib for cost in each):>12.0f}")
    pairs = zip(costs["overlay"], costs["unpack and pack"], strict=True)
    ratios = [peer.seconds / overlay.seconds for overlay, peer in pairs]
    middle = statistics.median(ratios)
    print(f"overlay is {middle:.1f} times faster ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
