"""What a machine offers a wheel: its Python, its platform tags, its glibc and its libstdc++."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging import tags

from dspatch.errors import ProcessError
from dspatch.process import run
from dspatch.wheel.elf import Version, provided_versions

# Runs in the Python that shall load the wheel. It asks the loader itself for libstdc++, because
# LD_LIBRARY_PATH and a conda environment's own copy decide as much as the system does.
_PROBE = """
import ctypes, json, os, platform, sys, sysconfig
try:
    ctypes.CDLL("libstdc++.so.6")
    with open("/proc/self/maps") as maps:
        libstdcxx = next(line.split(None, 5)[5].strip() for line in maps if "libstdc++.so" in line)
except (OSError, StopIteration):
    libstdcxx = ""
try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (AttributeError, OSError, ValueError):
    glibc = ""
print(json.dumps({"python": sys.version_info[:3], "arch": platform.machine(), "glibc": glibc,
                  "libstdcxx": libstdcxx}))
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What wheels meet here; a version is None where there is no such library."""

    python: tuple[int, int, int]
    arch: str
    platforms: tuple[str, ...]
    glibc: Version | None
    glibcxx: Version | None
    cxxabi: Version | None
    libstdcxx: str = ""

    def supported_tags(self) -> frozenset[tags.Tag]:
        """Every tag that a wheel may have to be installed here."""
        python = self.python[:2]
        cpython = tags.cpython_tags(python, platforms=self.platforms)
        anywhere = tags.compatible_tags(python, f"cp{python[0]}{python[1]}", self.platforms)
        return frozenset([*cpython, *anywhere])


def this_machine(python: Path | None = None) -> Machine:
    """This machine as a Python on it sees it; without `python`, as the one that runs dspatch does.

    Raises `ProcessError` when `python` does not run.
    """
    answer = run([python or sys.executable, "-I", "-c", _PROBE], timeout=60)
    try:
        facts = json.loads(answer.stdout)
    except ValueError:
        raise ProcessError(f"{python} does not answer as a Python does.") from None
    library = str(facts["libstdcxx"])
    provided = provided_versions(Path(library)) if library else {}
    glibc = str(facts["glibc"]).rpartition(" ")[2]
    major, minor, micro = facts["python"]
    return Machine(
        python=(major, minor, micro),
        arch=str(facts["arch"]),
        platforms=tuple(tags.platform_tags()),
        glibc=tuple(map(int, glibc.split("."))) if glibc else None,
        glibcxx=provided.get("GLIBCXX"),
        cxxabi=provided.get("CXXABI"),
        libstdcxx=library,
    )
