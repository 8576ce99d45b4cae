"""Questions to the machine that confirm or rule out a cause: each of what a line says and what is here."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from dspatch.serve.doctor.facts import Facts

SMALL_SHM = 1 << 30  # bytes; docker gives 64 MiB, NCCL wants more for a few ranks
# The first driver that runs code of a CUDA release, from NVIDIA's release notes (Linux).
# Within a major release, minor versions are compatible from the first driver on.
_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the machine says about a cause: it holds here, it does not, or (`None`) it cannot be told."""

    holds: bool | None
    text: str


Check = Callable[[Mapping[str, str], Facts], Answer]


def _glibcxx(groups: Mapping[str, str], facts: Facts) -> Answer:
    library = groups.get("library", "GLIBCXX")
    have = {"GLIBC": facts.glibc, "GLIBCXX": facts.glibcxx, "CXXABI": facts.cxxabi}.get(library)
    if have is None or "needed" not in groups:
        return Answer(holds=None, text="")
    told = f"here {library} goes up to {have}, the log wants {groups['needed']}"
    return Answer(holds=Version(have) < Version(groups["needed"]), text=told)


def _driver(groups: Mapping[str, str], facts: Facts) -> Answer:
    cuda = facts.torch_cuda
    if facts.driver is None or cuda is None:
        return Answer(holds=None, text="")
    least = _DRIVERS.get(int(cuda.split(".")[0]))
    if least is None:
        return Answer(holds=None, text=f"driver {facts.driver}, torch is built for CUDA {cuda}")
    told = f"driver {facts.driver}; torch is built for CUDA {cuda}, which needs {least} or newer"
    return Answer(holds=_numbers(facts.driver) < _numbers(least), text=told)


def _port(groups: Mapping[str, str], facts: Facts) -> Answer:
    if not groups.get("port", "").isdigit():
        return Answer(holds=None, text="")
    port = int(groups["port"])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        busy = port < 65536 and probe.connect_ex(("127.0.0.1", port)) == 0
    if busy:
        return Answer(holds=True, text=f"something answers on port {port} of this machine now")
    return Answer(holds=None, text=f"nothing answers on port {port} of this machine now")


def _shm(groups: Mapping[str, str], facts: Facts) -> Answer:
    if facts.shm is None:
        return Answer(holds=None, text="")
    told = f"/dev/shm here has {facts.shm / 2**20:,.0f} MiB"
    return Answer(holds=True if facts.shm < SMALL_SHM else None, text=told)


def _nvcc(groups: Mapping[str, str], facts: Facts) -> Answer:
    if facts.nvcc:
        return Answer(holds=None, text=f"nvcc is here: {facts.nvcc}")
    return Answer(
        holds=True, text="there is no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda here"
    )


def _torch(groups: Mapping[str, str], facts: Facts) -> Answer:
    """Whether the installed torch is the one that the engine asks for, and has the missing symbol."""
    env = facts.environment
    if env is None or env.torch is None:
        return Answer(holds=None, text="")
    if "symbol" in groups:
        owner = env.exporting(groups["symbol"])
        if owner:
            return Answer(holds=False, text=f"{owner} of torch {env.torch} has the symbol")
        return Answer(holds=True, text=f"no library of torch {env.torch} has {groups['symbol']}")
    if env.torch_wanted and not env.torch_fits:
        told = f"{env.project} {env.version} asks for torch {env.torch_wanted}, {env.torch} is installed"
        return Answer(holds=True, text=told)
    return Answer(holds=None, text=f"torch {env.torch}")


def _no_gpu(groups: Mapping[str, str], facts: Facts) -> Answer:
    if facts.gpus:
        return Answer(holds=None, text=f"here are {len(facts.gpus)}: {facts.gpus[0].name}")
    return Answer(holds=True, text="no NVIDIA GPU answers on this machine")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


CHECKS: Mapping[str, Check] = {
    "glibcxx": _glibcxx, "driver": _driver, "port": _port, "shm": _shm, "nvcc": _nvcc,
    "torch": _torch, "gpu": _no_gpu,
}  # fmt: skip
