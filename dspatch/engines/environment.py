"""Python environments of their own for engines and for the oracle, made once and cached."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dspatch import files, paths, process
from dspatch.engines import Progress, silent
from dspatch.errors import EngineEnvironmentError, ProcessError

MARKER = ".complete"

# PyPI's builds of these load only beside the torch that they were built with, and a CPU build of
# torch is another one. vLLM and transformers do without them, but not with a broken one.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
PROBE = """
import importlib, importlib.util, sys
for name in sys.argv[1:]:
    if importlib.util.find_spec(name):
        try:
            importlib.import_module(name)
        except Exception:
            print(name)
"""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment and its interpreter."""

    path: Path

    @property
    def python(self) -> Path:
        """The interpreter to run."""
        return self.path / "bin" / "python"

    @property
    def log(self) -> Path:
        """What pip said while the environment was made."""
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def complete(self) -> bool:
        """Whether it was made to the end."""
        return (self.path / MARKER).is_file()


def for_wheel(
    kind: str, wheel: Path, requirements: Sequence[str], progress: Progress = silent
) -> Environment:
    """The environment of an engine's wheel, found by the wheel's sha256."""
    return ensure(kind, requirements, key=files.sha256(wheel), progress=progress)


def ensure(
    kind: str, requirements: Sequence[str], *, key: str = "", progress: Progress = silent
) -> Environment:
    """The cached environment with these requirements, made with pip when it is not there.

    pip reads the user's own configuration (indexes, find-links, certificates). `key` identifies
    the requirements when their text does not. Raises `EngineEnvironmentError`.
    """
    from filelock import FileLock

    environment = locate(kind, requirements, key=key)
    if environment.complete:
        return environment
    environment.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(environment.path.with_name(f"{environment.path.name}.lock")):
        # Another process may have made it while this one waited for the lock.
        if not environment.complete:
            progress(f"making the environment {environment.path.name} (a minute or two, once)")
            with files.disk_full_explained(environment.path.parent):
                _make(environment, requirements)
    return environment


def locate(kind: str, requirements: Sequence[str], *, key: str = "") -> Environment:
    """Where the environment with these requirements is, or would be, in the cache."""
    identity = json.dumps([key or list(requirements), sys.version_info[:2]])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return Environment(path=paths.cache() / "envs" / f"{kind}-{digest}")


def _make(environment: Environment, requirements: Sequence[str]) -> None:
    # A virtual environment cannot be moved into place when done: its scripts hold absolute paths.
    # So a half-made one is known by its missing marker, and is thrown away.
    shutil.rmtree(environment.path, ignore_errors=True)
    environment.log.unlink(missing_ok=True)
    try:
        process.run([sys.executable, "-m", "venv", environment.path], log=environment.log)
        _pip(environment, "install", "--no-input", *requirements)
        broken = _broken_companions(environment)
        if broken:
            _pip(environment, "uninstall", "--yes", *broken)
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(environment.path)
        if isinstance(error, ProcessError):
            wanted = ", ".join(Path(requirement).name for requirement in requirements)
            raise EngineEnvironmentError(
                f"The environment for {wanted} could not be made.",
                why=error.why,
                next=f"read pip's log: {environment.log}",
            ) from None
        raise
    record = {"requirements": list(requirements), "removed": broken}
    files.write_atomically(environment.path / MARKER, (json.dumps(record) + "\n").encode())


def _pip(environment: Environment, *arguments: str) -> None:
    process.run(
        [environment.python, "-m", "pip", "--disable-pip-version-check", *arguments],
        env={"PYTHONPATH": ""},
        log=environment.log,
    )


def _broken_companions(environment: Environment) -> list[str]:
    done = process.run([environment.python, "-c", PROBE, *COMPANIONS], env={"PYTHONPATH": ""})
    return done.stdout.split()
