"""The machine's facts that decide whether an engine starts: driver, GPUs, libraries, memory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dspatch import process
from dspatch.errors import DspatchError
from dspatch.serve.doctor.installed import Environment
from dspatch.wheel.elf import dotted
from dspatch.wheel.machine import this_machine

_ASK = ("name", "compute_cap", "memory.total", "driver_version")
_FLAGS = ("avx512f", "avx512_bf16", "amx_tile")
TIMEOUT = 20.0  # seconds; nvidia-smi on a machine with sleeping GPUs


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU: `capability` as NVIDIA writes it (9.0), `memory` in MiB."""

    name: str
    capability: str
    memory: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is here; `None` is not known. `memory` and `shm` in bytes, `environment` of a Python."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    nvcc: str | None = None
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    memory: int | None = None
    shm: int | None = None
    cpu: tuple[str, ...] = ()
    environment: Environment | None = None

    @property
    def torch_cuda(self) -> str | None:
        """The CUDA release that the environment's torch was built for."""
        return self.environment.torch_cuda if self.environment else None


def gather(environment: Environment | None) -> Facts:
    """Look at this machine, as an environment's Python sees it; what cannot be asked is left unknown."""
    gpus, driver = _gpus()
    return Facts(
        gpus=gpus,
        driver=driver or _kernel_driver(),
        cuda=_cuda() if driver else None,
        nvcc=_nvcc(os.environ),
        **_libraries(environment.python if environment else None),
        memory=_memory(),
        shm=_shm(Path("/dev/shm")),
        cpu=_cpu(),
        environment=environment,
    )


def _libraries(python: Path | None) -> dict[str, str]:
    """The versions of the C and C++ libraries that a Python meets."""
    try:
        here = this_machine(python)
    except DspatchError:
        return {}
    found = {"glibc": here.glibc, "glibcxx": here.glibcxx, "cxxabi": here.cxxabi}
    return {name: dotted(version) for name, version in found.items() if version}


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs and the driver's version, as nvidia-smi tells them."""
    try:
        done = process.run(
            ["nvidia-smi", f"--query-gpu={','.join(_ASK)}", "--format=csv,noheader,nounits"],
            timeout=TIMEOUT,
        )
    except DspatchError:
        return (), None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_ASK)]
    found = tuple(Gpu(name=row[0], capability=row[1], memory=row[2]) for row in rows)
    return found, rows[0][3] if rows else None


def _kernel_driver() -> str | None:
    """The version of a driver that is loaded, where nvidia-smi is missing (in a container)."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return found[1] if found else None


def _cuda() -> str | None:
    """The newest CUDA release that the driver runs."""
    try:
        text = process.run(["nvidia-smi"], timeout=TIMEOUT).stdout
    except DspatchError:
        return None
    found = re.search(r"CUDA Version: ([\d.]+)", text)
    return found[1] if found else None


def _nvcc(environ: Mapping[str, str]) -> str | None:
    """The CUDA compiler that a kernel built at run time would be compiled with."""
    homes = [environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [Path(home) / "bin" / "nvcc" for home in homes if home]
    return shutil.which("nvcc") or next((str(each) for each in places if each.is_file()), None)


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _shm(place: Path) -> int | None:
    try:
        stat = os.statvfs(place)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks


def _cpu() -> tuple[str, ...]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    have = flags[1].split() if flags else []
    return tuple(flag for flag in _FLAGS if flag in have)
