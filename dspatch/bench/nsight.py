"""Nsight Compute around an engine's server: which kernels ran, how long, and how many bytes they moved."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dspatch.bench.trace import Profile, Spent, summed
from dspatch.errors import ProfileError

PROGRAM = "ncu"
# What its own processes are called: it may be a script, and has a launcher between itself and what it starts.
OWN = (
    PROGRAM, "sh", "bash", "dash", "TreeLauncherSubreaper", "TreeLauncherTargetLdPreloadHelper",
)  # fmt: skip
LAUNCHES = 300  # that are counted at most: two decode steps of a small model; each costs far more than its time
TIME, BYTES = "gpu__time_duration.sum", "dram__bytes.sum"
NAME = "Kernel Name"


def program() -> str:
    """Nsight Compute on PATH. Raises `ProfileError` where there is none."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise ProfileError(
            "Nsight Compute is not on PATH.",
            why=f"its program {PROGRAM} comes with the CUDA toolkit",
            next="add its folder to PATH, or leave --nsight out: torch's profiler needs no program",
        )
    return found


def command(ncu: str, log: Path) -> tuple[str, ...]:
    """What stands before a server's command, so that the kernels of all its processes are counted.

    Only those between the start and the stop that the server gives CUDA's profiler. Both metrics are
    read in one pass, so that no kernel runs twice; clocks and caches stay as the engine has them.
    """
    return (
        ncu,
        "--target-processes", "all",
        "--profile-from-start", "off",
        "--clock-control", "none",
        "--cache-control", "none",
        "--metrics", f"{TIME},{BYTES}",
        "--launch-count", str(LAUNCHES),
        "--csv", "--page", "raw", "--print-units", "base",
        "--log-file", str(log),
    )  # fmt: skip


def read(log: Path) -> Profile:
    """The kernels in a log that Nsight Compute wrote. Raises `ProfileError` for one without any."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    try:
        found = list(_kernels(text.splitlines()))
    except (KeyError, ValueError, csv.Error) as error:
        raise _none(log, f"{type(error).__name__}: {error}") from None
    if not found:
        raise _none(log, _said(text))
    return Profile(operators=(), kernels=summed(found))


def _kernels(lines: Sequence[str]) -> Iterator[Spent]:
    """Each launch; a table begins with its header, and its second row holds units."""
    header: list[str] = []
    for row in csv.reader(line for line in lines if line.startswith('"')):
        if NAME in row:
            header = row
        elif header and row[0]:
            yield _spent(dict(zip(header, row, strict=True)))


def _spent(row: Mapping[str, str]) -> Spent:
    nanoseconds, moved = (float(row[name].replace(",", "")) for name in (TIME, BYTES))
    return Spent(name=row[NAME], microseconds=nanoseconds / 1e3, calls=1, moved=moved)


def _said(text: str) -> str:
    """What the tool gives as its reason: its last errors or warnings, or that it said nothing."""
    told = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return "\n".join(told[-3:]) or "it counted nothing"


def _none(log: Path, why: str) -> ProfileError:
    return ProfileError(
        "Nsight Compute counted no kernel.",
        why=why,
        next=f"read {log} and the server's log; it needs leave to read counters (root, or"
        " NVreg_RestrictProfilingToAdminUsers=0)",
    )
