"""Size and time of a delta beside those of the overlay wheel that it stands for.

    python benchmarks/delta.py BASE_WHEEL OVERLAY_WHEEL [--rounds 5] [--json out.json]

Each round starts from the base wheel as pip installed it. One way applies the delta with the
environment's own Python; the other has pip install the overlay wheel from the disk in the place of
the base. The two take turns, as processes of their own, timed from start to exit; what each leaves
is compared, file by file. Nothing is downloaded: with a network between, the sizes tell the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dspatch.wheel.delta import build_delta

EPOCH = 1_700_000_000
PIP = ["-m", "pip", "--disable-pip-version-check"]
# Where an installation came from, and paths of its environment.
OWN = ("RECORD", "direct_url.json", "direct_url.base.json")


def main() -> None:
    """Measure, print a table, and write every measurement to `--json`."""
    words = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="delta-bench-", dir=words.dir) as name:
        folder = Path(name)
        start = time.perf_counter()
        delta = build_delta(words.base, words.overlay, folder, epoch=EPOCH)
        built = time.perf_counter() - start
        pristine = folder / "pristine"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", pristine], check=True)
        _timed(_install(pristine, words.base))
        costs: dict[str, list[float]] = {"delta": [], "overlay": []}
        for at in range(words.rounds + 1):
            apply = [_python(pristine), delta.path]
            found = {"delta": _timed(apply)}
            left = _files(pristine)
            _timed([*apply, "--undo"])
            other = folder / "other"
            shutil.copytree(pristine, other, symlinks=True)
            removed = _timed([sys.executable, *_pip(other), "uninstall", "-y", "-q", *_base(other)])
            found["overlay"] = removed + _timed(_install(other, words.overlay))
            if left != _files(other):
                raise SystemExit("the two did not leave the same files")
            shutil.rmtree(other)
            # The first round fills the page cache for both.
            for key, seconds in found.items() if at else ():
                costs[key].append(seconds)
    _report(delta.size, words.overlay.stat().st_size, built, costs)
    if words.json:
        words.json.write_text(json.dumps({"size": delta.size, "seconds": costs}, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("base", type=Path)
    parser.add_argument("overlay", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, help="where the environments are made")
    return parser


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _pip(environment: Path) -> list[str]:
    return [*PIP, "--python", str(_python(environment))]


def _install(environment: Path, wheel: Path) -> list[str | Path]:
    return [sys.executable, *_pip(environment), "install", "-q", "--no-deps", "--no-index", wheel]


def _base(environment: Path) -> list[str]:
    """The project of the one distribution that is there."""
    (info,) = next((environment / "lib").glob("python*/site-packages")).glob("*.dist-info")
    return [info.name.partition("-")[0]]


def _files(environment: Path) -> dict[str, str]:
    site = next((environment / "lib").glob("python*/site-packages"))
    return {
        place.relative_to(site).as_posix(): hashlib.sha256(place.read_bytes()).hexdigest()
        for place in site.rglob("*")
        if place.is_file() and place.suffix != ".pyc" and place.name not in OWN
    }


def _timed(command: Sequence[str | Path]) -> float:
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - start


def _report(size: int, whole: int, built: float, costs: dict[str, list[float]]) -> None:
    sizes = {"delta": size, "overlay": whole}
    print(f"{'':9}{'kB':>12}{'seconds: median (min to max)':>32}")
    for name, seconds in costs.items():
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"{name:9}{sizes[name] / 1e3:>12.1f}{spread:>32}")
    ratios = [b / a for a, b in zip(costs["delta"], costs["overlay"], strict=True)]
    told = f"{statistics.median(ratios):.0f} times faster ({min(ratios):.0f} to {max(ratios):.0f})"
    print(f"the delta is {whole / size:.0f} times smaller, {told}; built in {built:.2f} s")


if __name__ == "__main__":
    main()
