"""Run the conversion of an LMDeploy wheel to TurboMind without a GPU, in an environment of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from dspatch import tomlfile
from dspatch.engines import Progress, environment, worker
from dspatch.engines.environment import Environment
from dspatch.errors import EngineError

NAME = "lmdeploy"
WORKERS = Path(__file__).with_name("workers")
TIMEOUT = 900.0  # seconds for all checkpoints of one call


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a release's conversion is run with, and what its engine does with the result."""

    requirements: tuple[str, ...]
    builders: bool
    latent: bool
    masks_first: bool
    vocab_first: bool

    @property
    def engine(self) -> Mapping[str, bool]:
        """What the worker of the conversion is told of the engine."""
        return {
            "builders": self.builders,
            "latent": self.latent,
            "vocab_first": self.vocab_first,
        }

    @property
    def layout(self) -> Mapping[str, Any]:
        """How the oracle's worker runs the converted tensors."""
        flags = {"masks_first": self.masks_first, "vocab_first": self.vocab_first}
        return {"name": "turbomind", **flags}


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What came of one checkpoint: a folder with the engine's configuration and tensors, and facts."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def error(self) -> str:
        """Why the conversion did not come to its end, or an empty string."""
        return str(self.facts.get("error", ""))


def release(version: str) -> Release | None:
    """How a version converts, from conversion.toml; `None` before the first and after the last that was read."""
    data = tomlfile.load(Path(__file__).with_name("conversion.toml"), EngineError).data
    own = Version(version)
    fitting = [one for one in data["since"] if Version(one["release"]) <= own]
    if not fitting or Version(own.base_version) > Version(data["last"]):
        return None
    last = fitting[-1]
    return Release(
        requirements=tuple(last["requirements"]),
        builders=last["builders"],
        latent=last["latent"],
        masks_first=last["masks-first"],
        vocab_first=last["vocab-first"],
    )


def prepare(wheel: Path, known: Release, below: Environment, progress: Progress) -> Environment:
    """The environment of a known release's conversion, over one that has PyTorch. As `environment.over`."""
    return environment.over("lmdeploy-convert", below, known.requirements, wheel, progress)


def convert(
    python: Path, checkpoints: Mapping[str, Path], known: Release, out: Path, *, gpus: int = 1
) -> dict[str, Conversion]:
    """Convert checkpoints with the LMDeploy of a known release that `python` imports, a folder each in `out`.

    A checkpoint that the release refuses says so in its `error`; `gpus` other than one are for what it
    says of such a split. Raises `EngineError` when the interpreter has no LMDeploy, `ProcessError` and
    `ProcessTimeoutError` as `process.run`.
    """
    folders = {name: out / name.replace("/", "-") for name in checkpoints}
    out.mkdir(parents=True, exist_ok=True)
    asked = [{"checkpoint": str(checkpoints[name]), "out": str(folders[name])} for name in folders]
    worker.run(
        python,
        WORKERS / "turbomind_worker",
        {"trials": asked, "gpus": gpus, **known.engine},
        out,
        env=variables(),
        log=out / "convert.log",
        timeout=TIMEOUT,
    )
    found = {name: _read(folder) for name, folder in folders.items()}
    _need_lmdeploy(list(found.values()))
    return found


def _read(folder: Path) -> Conversion:
    return Conversion(folder=folder, facts=json.loads((folder / "result.json").read_text()))


def _need_lmdeploy(found: Sequence[Conversion]) -> None:
    for one in found:
        if one.error == "ModuleNotFoundError: No module named 'lmdeploy'":
            raise EngineError(
                "The interpreter that was to run LMDeploy's conversion does not have it.",
                why=one.error,
                next="build a wheel first: dspatch build-wheel --engine lmdeploy",
            )


def variables() -> dict[str, str]:
    """The environment variables of a conversion: off the network, and without a GPU."""
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
