"""A delta between two generated wheels, and the base installed by pip in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dspatch.wheel.delta import Delta, build_delta
from dspatch.wheel.overlay import build_overlay
from tests.unit import wheelkit

# What only one of two installations can have the same: where it came from, and compiled files.
ORIGINS = ("direct_url.json", "direct_url.base.json")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A base wheel, the overlay on it, the delta between them, and a site-packages with the base."""

    base: Path
    overlay: Path
    delta: Delta
    site: Path

    @property
    def python(self) -> Path:
        return self.site.parents[2] / "bin" / "python"

    def run(self, *arguments: str, code: int = 0, python: Path | None = None) -> str:
        """Run the delta file; what it printed."""
        command = [python or self.python, self.delta.path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


def wheels(folder: Path) -> tuple[Path, Path, Delta]:
    """Base wheel, overlay and delta."""
    base = wheelkit.base_wheel(folder / "base")
    overlay = build_overlay(wheelkit.plan(base), folder / "dist").path
    return base, overlay, build_delta(base, overlay, folder / "dist", epoch=wheelkit.EPOCH)


def install(wheel: Path, folder: Path, *options: str) -> Path:
    """A new environment with a wheel that pip installed; its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "-q", "--no-deps", "--no-index", *options, wheel],
        check=True,
        env={**os.environ, "PYTHONPATH": "", "PIP_CONFIG_FILE": os.devnull},
    )
    return next((folder / "lib").glob("python*/site-packages"))


def copied(bench: Bench, folder: Path) -> Bench:
    """The same with a copy of the environment, to be changed by one test."""
    environment = bench.site.parents[2]
    shutil.copytree(environment, folder / "venv", symlinks=True)
    site = folder / "venv" / bench.site.relative_to(environment)
    return Bench(base=bench.base, overlay=bench.overlay, delta=bench.delta, site=site)


def files(site: Path, *, compiled: bool = False) -> dict[str, str]:
    """Every file of a folder by path: mode and sha256."""
    return {
        place.relative_to(site).as_posix(): f"{place.stat().st_mode:o} {_hash(place)}"
        for place in sorted(site.rglob("*"))
        if place.is_file() and (compiled or place.suffix != ".pyc")
    }


def _hash(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()
