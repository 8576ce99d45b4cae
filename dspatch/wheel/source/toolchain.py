"""What this machine has to build with: compilers, headers, cores, memory and disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from dspatch import astfind, process
from dspatch.errors import ProcessError

GIGA = 1e9
_NOWHERE = Path("/nowhere")


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """What there is; `memory` (free now) and `disk` (free where the build goes) in GB.

    `headers` are those of the asked that the compiler finds.
    """

    compiler: Version | None
    headers: frozenset[str]
    nvcc: Version | None
    ccache: bool
    cores: int
    memory: float
    disk: float

    @property
    def name(self) -> str:
        """The compilers, as a receipt states them."""
        parts = [f"g++ {self.compiler}" if self.compiler else "no g++"]
        return ", ".join([*parts, *([f"nvcc {self.nvcc}"] if self.nvcc else [])])


def look(folder: Path, headers: Iterable[str]) -> Toolchain:
    """What this machine has for a build in a folder."""
    include = toolkit(os.environ) / "include"
    found = compiler()
    return Toolchain(
        compiler=found,
        headers=frozenset(name for name in headers if found and _compiles(name, include)),
        nvcc=_version([nvcc(os.environ), "--version"], r"release ([\d.]+)"),
        ccache=shutil.which("ccache") is not None,
        cores=len(os.sched_getaffinity(0)),
        memory=_memory() / GIGA,
        disk=shutil.disk_usage(folder).free / GIGA,
    )


def compiler(program: str = "g++") -> Version | None:
    """The version of a C++ compiler, or `None` where there is none of that name."""
    return _version([program, "-dumpfullversion", "-dumpversion"], r"([\d.]+)")


def nvcc(environment: Mapping[str, str]) -> str:
    """NVIDIA's compiler, where torch's build looks for it: CUDA_HOME first, then PATH."""
    home = environment.get("CUDA_HOME")
    return str(Path(home) / "bin" / "nvcc") if home else "nvcc"


def toolkit(environment: Mapping[str, str]) -> Path:
    """The folder of the CUDA toolkit, as CUDA_HOME or nvcc itself says; of none, one that is not there."""
    if home := environment.get("CUDA_HOME"):
        return Path(home)
    try:
        said = process.run(["nvcc", "--dryrun", "-v", "x.cu"], check=False).stderr
    except ProcessError:
        return _NOWHERE
    found = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    return Path(found[1]).resolve() if found else _NOWHERE


def cmake(folder: Path) -> Version | None:
    """The CMake of a build environment's programs, else the machine's own."""
    own = folder / "cmake"
    return _version([str(own) if own.exists() else "cmake", "--version"], r"version ([\d.]+)")


def cuda_of(torch: Path) -> Version | None:
    """The CUDA that an installed torch was built with, read from its folder; `None` for a CPU build."""
    found = astfind.assigned((torch / "version.py").read_bytes(), "cuda")
    return Version(found) if found else None


def _version(command: list[str], pattern: str) -> Version | None:
    try:
        said = process.run(command).stdout
    except ProcessError:
        return None
    found = re.search(pattern, said)
    return Version(found[1]) if found else None


def _compiles(header: str, include: Path) -> bool:
    """Whether a header is found, by the compiler itself or in the CUDA toolkit."""
    command = ["g++", "-fsyntax-only", f"-I{include}", "-x", "c++", "-"]
    return process.run(command, stdin=f"#include <{header}>\n", check=False).returncode == 0


def _memory() -> float:
    """Memory that is free without swapping, in bytes."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return float(found[1]) * 1024 if found else 0.0
