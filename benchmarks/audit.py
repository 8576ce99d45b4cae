"""`dspatch audit` or `serve flags` of one release, cold and warm, beside downloading and unpacking its wheel.

    python benchmarks/audit.py --rev v0.10.1 --variant deepseek-v3 --rounds 5
    python benchmarks/audit.py --rev v0.27.1 --flags "vllm serve M -tp 8" --rounds 5

Cold starts from an empty cache, warm from what the run before left; each figure is a whole process,
in seconds: median (minimum to maximum). The wheel is fetched by pip without its dependencies, as
somebody would who wants to look at it, and unpacked.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROUNDS = 5


def audit(words: list[str], cache: Path) -> tuple[float, float, dict[str, Any]]:
    """One command in a process of its own: seconds, those of them on a processor, and its result."""
    env = {**os.environ, "DSPATCH_CACHE": str(cache), "DSPATCH_WORK": str(cache / "work")}
    command = [sys.executable, "-m", "dspatch", *words]
    start, busy = time.perf_counter(), cpu()
    done = subprocess.run(command, env=env, check=True, capture_output=True)
    return time.perf_counter() - start, cpu() - busy, json.loads(done.stdout)


def cpu() -> float:
    """The seconds that the processes started here spent on a processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wheel(engine: str, rev: str, folder: Path) -> tuple[float, float, int, int]:
    """Seconds to download and to unpack a release's wheel, its bytes, and those unpacked."""
    wanted = f"{engine}=={rev.removeprefix('v')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--python-version=3.11", "--dest", str(folder), wanted]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    fetched = time.perf_counter() - start
    (path,) = folder.glob("*.whl")
    start = time.perf_counter()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder / "unpacked")
        size = sum(info.file_size for info in archive.infolist())
    return fetched, time.perf_counter() - start, path.stat().st_size, size


def text(times: list[tuple[float, float]]) -> str:
    values, busy = [each[0] for each in times], [each[1] for each in times]
    spread = f"{min(values):.1f} to {max(values):.1f}"
    return f"{statistics.median(values):.1f} s ({spread}), {statistics.median(busy):.1f} s of processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--rev", default="v0.10.1")
    parser.add_argument("--variant", default="deepseek-v3")
    parser.add_argument("--flags", metavar="COMMAND", help="a command line that is clean, to check")
    parser.add_argument("--no-wheel", action="store_true", help="leave the wheel out")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    source = ["--engine", given.engine, "--rev", given.rev, "--json"]
    words = ["audit", *source, "--variant", given.variant]
    if given.flags:
        words = ["serve", "flags", *source, "--", given.flags]
    key = "verdicts" if given.flags else "findings"
    cold: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            cache = Path(folder) / f"cache-{number}"
            *times, first = audit(words, cache)
            cold.append((times[0], times[1]))
            *times, again = audit(words, cache)
            warm.append((times[0], times[1]))
            assert first[key] == again[key]
        peer = None if given.no_wheel else wheel(given.engine, given.rev, Path(folder) / "wheel")
    print(f"{given.engine} {given.rev}, {given.flags or given.variant}: {len(first[key])} {key}")
    print(f"cold: {text(cold)}, {first['bytes'] / 1e6:.2f} MB in {first['requests']} requests")
    print(f"warm: {text(warm)}, {again['bytes'] / 1e6:.2f} MB in {again['requests']} requests")
    if peer is None:
        return
    fetched, unpacked, size, whole = peer
    print(
        f"wheel: {size / 1e6:.0f} MB in {fetched:.1f} s, unpacked to {whole / 1e6:.0f} MB in {unpacked:.1f} s"
    )


if __name__ == "__main__":
    main()
