"""Compile a folder of sources into a wheel, upstream's own way, in an environment made for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dspatch import process
from dspatch.engines.environment import Environment
from dspatch.errors import ProcessError, SourceBuildError
from dspatch.files import write_atomically
from dspatch.wheel.source import progress

INPUTS = "inputs.json"


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where a build takes place: `sources`, `dist` for its wheel, `log`, and who compiles.

    `inputs` is all that the objects depend on beside the sources, as text.
    """

    sources: Path
    dist: Path
    log: Path
    environment: Environment
    variables: Mapping[str, str]
    epoch: int
    inputs: str


def compiled(shop: Workshop, tell: Callable[[str], None]) -> Path:
    """The wheel that upstream's build makes of the sources.

    What was compiled before is used again where its sources did not change. Raises
    `SourceBuildError` with the end of the log.
    """
    _clear(shop)
    _forget(shop)
    pip = [sys.executable, "-m", "pip", "--python", str(shop.environment.python)]
    words = [
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "--no-input",
        "--verbose",
        "--no-cache-dir",
    ]
    command = [
        *pip,
        "--disable-pip-version-check",
        *words,
        "--wheel-dir",
        str(shop.dist),
        str(shop.sources),
    ]
    shop.log.unlink(missing_ok=True)
    try:
        with progress.told(shop.log, tell):
            process.run(command, env=_environment(shop), log=shop.log)
    except ProcessError as error:
        raise _failed(shop, error) from None
    return next(shop.dist.glob("*.whl"))


def _clear(shop: Workshop) -> None:
    """Throw away what an earlier build gathered, not what it compiled: old modules would be packed again."""
    shutil.rmtree(shop.dist, ignore_errors=True)
    for gathered in ("build/lib*", "build/bdist*", "*.egg-info"):
        for place in shop.sources.glob(gathered):
            shutil.rmtree(place)


def _forget(shop: Workshop) -> None:
    """Let CMake configure anew when what it builds with has changed.

    It remembers flags of the environment and where it found torch, and would build with the old ones.
    """
    record = shop.log.with_name(INPUTS)
    if not record.is_file() or record.read_text() != shop.inputs:
        _configure_anew(shop)
        write_atomically(record, shop.inputs.encode())


def _configure_anew(shop: Workshop) -> None:
    for found in shop.sources.glob("build/temp*/CMakeCache.txt"):
        found.unlink()


def _environment(shop: Workshop) -> dict[str, str]:
    path = f"{shop.environment.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {
        "PATH": path,
        "PYTHONPATH": "",
        "VIRTUAL_ENV": str(shop.environment.path),
        "SOURCE_DATE_EPOCH": str(shop.epoch),
        # The commit of a repository that happens to lie around the job is not the engine's.
        "GIT_CEILING_DIRECTORIES": str(shop.sources.parent.resolve()),
        **shop.variables,
    }


def _failed(shop: Workshop, error: ProcessError) -> SourceBuildError:
    said = shop.log.read_text(errors="replace") if shop.log.is_file() else ""
    hint = f"read the whole log: {shop.log}"
    if "Configuring incomplete" in said:
        # CMake remembers what it did not find, and would not look again.
        _configure_anew(shop)
    if "Failed to clone repository" in said or "Could not resolve host" in said:
        hint += (
            "; the build fetches sources of other projects by git: where this machine cannot, put a"
            " copy of each there and name it in CMAKE_ARGS (-DFETCHCONTENT_SOURCE_DIR_<NAME>=...)"
        )
    elif "Killed" in said or "out of memory" in said.lower():
        hint += "; a compiler ran out of memory: build with fewer --jobs"
    why = "\n        ".join(_errors(said) or [error.why])
    return SourceBuildError("Upstream's build failed.", why=why, next=hint)


def _errors(said: str) -> list[str]:
    """The first lines of a log that state an error; what follows them is their echo."""
    marks = ("error:", "CMake Error", "fatal error", "ModuleNotFoundError", "RuntimeError")
    lines = [line.strip() for line in said.splitlines() if any(mark in line for mark in marks)]
    return lines[:8]
