"""What a Python has installed, as far as it decides whether an engine starts; nothing is imported."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from dspatch import astfind
from dspatch.audit import environment
from dspatch.errors import WheelError
from dspatch.pins import needs
from dspatch.wheel import elf
from dspatch.wheel.pedigree import read_pedigree
from dspatch.wheel.plan import SBOM_NAME

BESIDE = (
    *("torch", "transformers", "triton", "flashinfer-python", "flash-attn", "xformers"),
    *("numpy", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "deep-gemm", "tokenizers"),
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An engine in a Python, and what it meets there.

    `torch_wanted` is what the engine's metadata asks for, `torch_root` the folder that holds torch's
    package; `patches` are those that dspatch built in; `abi` says whether torch uses C++11 strings,
    `None` where its files do not say.
    """

    python: Path
    engine: str
    project: str
    version: str
    root: Path
    torch_root: Path | None = None
    versions: dict[str, str] = field(default_factory=dict)
    torch_wanted: str = ""
    torch_cuda: str | None = None
    abi: bool | None = None
    patches: tuple[str, ...] = ()

    @property
    def torch(self) -> str | None:
        """The version of the installed torch."""
        return self.versions.get("torch")

    @property
    def torch_fits(self) -> bool:
        """Whether the installed torch is one that the engine asks for; its local part does not count."""
        try:
            wanted = Requirement(f"torch{self.torch_wanted}").specifier
            return self.torch is not None and Version(self.torch).public in wanted
        except (InvalidRequirement, InvalidVersion):
            return True

    def exporting(self, symbol: str) -> str:
        """The library of torch that has a symbol; empty when none has."""
        if self.torch_root is None:
            return ""
        libraries = sorted((self.torch_root / "torch" / "lib").glob("lib*.so*"))
        return next((each.name for each in libraries if elf.exports(each, symbol)), "")


def look(given: str, engine: str | None) -> Environment:
    """What a Python, or the Python of a virtual environment's folder, has installed.

    Raises `EngineEnvironmentError` when there is no such Python, or none of the engines in it.
    """
    python = environment.interpreter(given)
    found = environment.find(python, engine)
    beside = environment.distributions(python, BESIDE)
    torch = beside["torch"][1] if "torch" in beside else None
    info = _dist_info(found.root, found.project, found.version)
    return Environment(
        python=python,
        engine=found.engine,
        project=found.project,
        version=found.version,
        root=found.root,
        torch_root=torch,
        versions={name: version for name, (version, _) in beside.items()},
        torch_wanted=_wanted(info),
        torch_cuda=_cuda(torch) if torch else None,
        abi=_abi(torch) if torch else None,
        patches=_patches(info),
    )


def _dist_info(root: Path, project: str, version: str) -> Path | None:
    """The `.dist-info` folder of an installation."""
    for place in root.glob("*.dist-info"):
        name, _, of = place.name.removesuffix(".dist-info").partition("-")
        if canonicalize_name(name) == canonicalize_name(project) and of == version:
            return place
    return None


def _wanted(info: Path | None) -> str:
    """The specifier of torch in an engine's metadata; empty when it asks for none."""
    if info is None or not (info / "METADATA").is_file():
        return ""
    metadata, here = (info / "METADATA").read_bytes(), f"linux_{platform.machine()}"
    return (needs.requirement(metadata, "torch", here) or "").removeprefix("torch")


def _patches(info: Path | None) -> tuple[str, ...]:
    """The patches that a wheel's own bill of materials names; none when dspatch did not build it."""
    if info is None or not (info / SBOM_NAME).is_file():
        return ()
    try:
        stated = read_pedigree((info / SBOM_NAME).read_bytes())
    except (WheelError, OSError):
        return ()
    return tuple(each.name for each in stated.patches)


def _cuda(torch: Path) -> str | None:
    """The CUDA that an installed torch was built with."""
    try:
        return astfind.assigned((torch / "torch" / "version.py").read_bytes(), "cuda")
    except OSError:
        return None


def _abi(root: Path) -> bool | None:
    """Whether torch was built with C++11 strings, as its own build files tell others to be."""
    path = root / "torch" / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    try:
        found = re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", path.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] == "1" if found else None
