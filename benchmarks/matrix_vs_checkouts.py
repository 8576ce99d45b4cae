"""The matrix of every patch and release, beside checking out every release and running `git apply --check`.

    python benchmarks/matrix_vs_checkouts.py [--engine vllm] [--made-on v0.27.1] [--warm 5] [--json out.json]

The matrix runs as a process of its own, once with an empty cache, then warm. Its peer does what a script
would do without it: fetch every release's sdist (releases without one are left out and counted), unpack
it, commit it to git, and hold against it, with `git apply --check`, the diffs of the series as made on
one release. Two releases at once, so that both sides have both cores; each is removed before the next,
so the disk holds two. Bytes are those of the files that came; memory is the largest process's peak.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspatch import apply, archive, checkout, fetch, pins, pipconfig, series
from dspatch.carry.matrix.matrix import APPLIES
from dspatch.carry.remote import releases
from dspatch.carry.remote.releases import Release
from dspatch.stages.request import served

AT_ONCE = 2
QUIET = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run took: seconds by the clock and of the processors, MB that came, peak MiB."""

    seconds: float
    cpu: float
    megabytes: float
    peak_mib: float


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the peer found on one release: the patches that `git apply --check` takes."""

    version: str
    taken: tuple[str, ...]
    size: int
    peak_mib: float


def main() -> None:
    """Measure both, print a table, and write all of it to `--json`."""
    words = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="matrix-bench-", dir=words.folder) as folder:
        cold, matrix = _matrix(words.engine, Path(folder) / "cache")
        print(f"cold: {cold}", flush=True)
        warm = [_matrix(words.engine, Path(folder) / "cache")[0] for _ in range(words.warm)]
        print(f"warm: {warm}", flush=True)
        shutil.rmtree(Path(folder) / "cache")
        diffs = _diffs(words.engine, words.made_on)
        peer, checked, without = _peer(words.engine, diffs, Path(folder))
    _report(cold, warm, peer, without, len(matrix["releases"]))
    agreement = _agreement(matrix, checked)
    print(json.dumps(agreement, indent=1))
    if words.json:
        found = {
            "cold": asdict(cold), "warm": [asdict(each) for each in warm], "peer": asdict(peer),
            "without sdist": without, "agreement": agreement, "matrix": matrix,
            "checked": [asdict(each) for each in checked],
        }  # fmt: skip
        words.json.write_text(json.dumps(found, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--made-on", default="v0.27.1", help="the release that the diffs are of")
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work; 2 GB at most at any time")
    parser.add_argument("--json", type=Path)
    return parser


# -- the matrix ------------------------------------------------------------------------------------


def _matrix(engine: str, cache: Path) -> tuple[Cost, dict[str, Any]]:
    command = [sys.executable, "-m", "dspatch", "patch", "matrix", "--engine", engine, "--json"]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        environment = {**os.environ, "DSPATCH_CACHE": str(cache)}
        with subprocess.Popen(command, stdout=out, env=environment) as process:
            # wait4 gives this child's own peak; RUSAGE_CHILDREN would give the largest so far.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        out.seek(0)
        found: dict[str, Any] = json.load(out)
    if process.returncode:
        raise SystemExit(f"{command} exited with status {process.returncode}")
    size = found["bytes"] / 1e6
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(seconds=seconds, cpu=cpu, megabytes=size, peak_mib=usage.ru_maxrss / 1024), found


def _cpu() -> float:
    """Seconds of the processors that this process and its children had so far."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


# -- the peer ----------------------------------------------------------------------------------------


def _diffs(engine: str, rev: str) -> dict[str, str]:
    """The patches that apply to one release, for all targets, as diffs."""
    pristine = checkout.checkout(pins.load(engine, rev))
    found: dict[str, str] = {}
    for target in series.TARGETS:
        tree = apply.apply_series(
            series.layered(engine), pristine, target=target, variants=served(())
        )
        found |= {patch.name: tree.diff(patch) for patch in tree.patches}
    return found


def _peer(
    engine: str, diffs: Mapping[str, str], folder: Path
) -> tuple[Cost, list[Checked], list[str]]:
    all_releases = releases.published(engine).releases
    offered = [release for release in all_releases if release.sdist is not None]
    for name, diff in diffs.items():
        (folder / f"{name}.diff").write_bytes(diff.encode("utf-8", "surrogateescape"))
    start, cpu = time.perf_counter(), _cpu()
    with pipconfig.client(pipconfig.load()) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        checked = list(pool.map(lambda each: _check(each, sorted(diffs), folder, client), offered))
    cost = Cost(
        seconds=time.perf_counter() - start,
        cpu=_cpu() - cpu,
        megabytes=sum(each.size for each in checked) / 1e6,
        peak_mib=max(each.peak_mib for each in checked),
    )
    without = [release.version for release in all_releases if release.sdist is None]
    return cost, checked, without


def _check(release: Release, names: Sequence[str], folder: Path, client: Any) -> Checked:
    sdist = release.sdist
    assert sdist is not None
    with tempfile.TemporaryDirectory(prefix=f"{release.version}-", dir=folder) as work:
        path, tree = Path(work) / sdist.filename, Path(work) / "tree"
        fetch.fetch(client, sdist.url, path, sha256=sdist.sha256, size=sdist.size)
        size = path.stat().st_size
        archive.extract_sdist(path, tree)
        peaks = [
            _git(tree, "init", "--quiet", "--template="),
            _git(tree, "add", "--all", "--force"),
            _git(tree, "-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "gc.auto=0",
                 "commit", "--quiet", "--no-verify", "-m", release.version),
        ]  # fmt: skip
        taken = tuple(
            name for name in names if _git(tree, "apply", "--check", folder / f"{name}.diff") >= 0
        )
    return Checked(version=release.version, taken=taken, size=size, peak_mib=max(peaks))


def _git(tree: Path, *arguments: str | Path) -> float:
    """The peak of one git command in MiB, negative when it failed."""
    command = ["git", *arguments]
    environment = {**os.environ, **QUIET}
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and "apply" not in arguments:
        raise SystemExit(f"{command} exited with status {process.returncode}")
    return usage.ru_maxrss / 1024 if process.returncode == 0 else -1.0


# -- what came of it -----------------------------------------------------------------------------------


def _agreement(matrix: Mapping[str, Any], checked: Sequence[Checked]) -> dict[str, int]:
    """How often both say the same of a patch and release, and how often only one says it applies."""
    taken = {(name, each.version) for each in checked for name in each.taken}
    versions = {each.version for each in checked}
    counts: dict[str, int] = {}
    for row in matrix["rows"]:
        if row["patch"] not in {name for name, _ in taken}:
            continue
        for version in versions & row["cells"].keys():
            verdict = row["cells"][version]["verdict"]
            said = "git takes it" if (row["patch"], version) in taken else "git refuses it"
            key = f"{'applies' if verdict in APPLIES else verdict}; {said}"
            counts[key] = counts.get(key, 0) + 1
    return dict(sorted(counts.items()))


def _report(
    cold: Cost, warm: Sequence[Cost], peer: Cost, without: Sequence[str], count: int
) -> None:
    print(f"{'':42}{'seconds':>18}{'CPU s':>9}{'MB':>9}{'peak MiB':>10}")
    seconds = [each.seconds for each in warm]
    spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
    rows = [
        (f"matrix of {count} releases, cold", f"{cold.seconds:.1f}", cold),
        ("matrix, warm", spread, warm[0]),
        (f"checkouts of {count - len(without)} releases", f"{peer.seconds:.1f}", peer),
    ]
    for name, time_taken, cost in rows:
        print(
            f"{name:42}{time_taken:>18}{cost.cpu:>9.1f}{cost.megabytes:>9.1f}{cost.peak_mib:>10.0f}"
        )
    print(f"without sdist, left out of the checkouts: {', '.join(without) or 'none'}")


if __name__ == "__main__":
    main()
