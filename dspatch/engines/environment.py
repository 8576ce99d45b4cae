"""Python environments of their own for engines and for the oracle, made once and cached."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock
from packaging.requirements import Requirement

from dspatch import files, paths, process
from dspatch.engines import Progress, sharing, silent
from dspatch.errors import EngineEnvironmentError, ProcessError
from dspatch.pins import mirror
from dspatch.wheel.metadata import satisfiable

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


_Layers = tuple[Environment, Environment]


def for_wheel(kind: str, wheel: Path, progress: Progress = silent) -> Environment:
    """The environment of an engine's wheel: the wheel alone, over a shared one of all that it needs.

    Gigabytes of torch are installed once for every wheel with the same requirements, stock or
    patched; only the wheel itself is installed for each. Raises `EngineEnvironmentError`.
    """
    return _over(_layers(kind, wheel), wheel, progress)


def has(kind: str, wheel: Path) -> bool:
    """Whether the environment of a wheel is in the cache, with all that it needs."""
    return _complete(_layers(kind, wheel))


@contextmanager
def lent(
    kind: str, wheel: Path, *, keep: bool = False, progress: Progress = silent
) -> Iterator[Environment]:
    """The environment of a wheel for one block: the usual one where it is there, else one for now.

    What is made for now has places of its own and is gone after the block; who asks for the
    same meanwhile waits. With `keep` it is made as `for_wheel` makes it. Raises `EngineEnvironmentError`.
    """
    usual = _layers(kind, wheel)
    if keep or _complete(usual):
        yield _over(usual, wheel, progress)
        return
    own = f"{kind}-lent"
    made = _layers(own, wheel, usual[0] if usual[0].complete else None)
    with ExitStack() as stack:
        for each in made:
            if each.path.name.startswith(own):
                stack.enter_context(FileLock(f"{each.path}.lent"))
                stack.callback(shutil.rmtree, each.path, ignore_errors=True)
        yield _over(made, wheel, progress)


def _layers(kind: str, wheel: Path, below: Environment | None = None) -> _Layers:
    """Where the shared environment of a wheel's needs is, and the wheel's own over it."""
    below = below or locate(f"{kind}-needs", needs(wheel))
    return below, locate(kind, [], key=f"{files.sha256(wheel)} {below.path.name}")


def _complete(layers: _Layers) -> bool:
    return all(each.complete for each in layers)


def _over(layers: _Layers, wheel: Path, progress: Progress) -> Environment:
    below, layer = layers
    _made(below, progress, lambda: _make(below, needs(wheel)))
    return _made(layer, progress, lambda: _layer(layer, below, wheel))


def over(
    kind: str, below: Environment, requirements: Sequence[str], wheel: Path, progress: Progress
) -> Environment:
    """The Python of a wheel without its compiled members, and requirements, over another environment.

    For code of an engine that runs without the engine itself. What `below` has in another version
    than the requirements ask for is hidden, not changed. Raises `EngineEnvironmentError`.
    """
    layer = locate(
        kind, [], key=f"{files.sha256(wheel)} {below.path.name} {' '.join(requirements)}"
    )
    return _made(layer, progress, lambda: _python_layer(layer, below, requirements, wheel))


def _python_layer(
    layer: Environment, below: Environment, requirements: Sequence[str], wheel: Path
) -> None:
    with _above(layer, below, [*requirements, wheel.name]):
        _pip(layer, "install", "--no-input", *_wanted(layer, requirements))
        with zipfile.ZipFile(wheel) as archive:
            kept = [name for name in archive.namelist() if not name.endswith((".so", ".a"))]
            archive.extractall(site_packages(layer), kept)


def needs(wheel: Path, changed: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The requirements of a wheel, without extras and without local versions that no index serves.

    changed: what a requirement that the wheel states is to say instead.
    """
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    stated = metadata.get_all("Requires-Dist", [])
    found = [Requirement(changed.get(text, text)) for text in stated]
    wanted = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
    return sorted({satisfiable(f"{r.name}{_extras(r)}{r.specifier}") for r in wanted})


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def ensure(
    kind: str, requirements: Sequence[str], *, key: str = "", progress: Progress = silent
) -> Environment:
    """The cached environment with these requirements, made with pip when it is not there.

    pip reads the user's own configuration (indexes, find-links, certificates). `key` identifies
    the requirements when their text does not. Raises `EngineEnvironmentError`.
    """
    environment = locate(kind, requirements, key=key)
    return _made(environment, progress, lambda: _make(environment, requirements))


def _made(environment: Environment, progress: Progress, make: Callable[[], None]) -> Environment:
    """The environment, made now unless it is there; one process makes it, others wait."""
    if environment.complete:
        return environment
    environment.path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(environment.path.with_name(f"{environment.path.name}.lock")):
        # Another process may have made it while this one waited for the lock.
        if not environment.complete:
            progress(f"making the environment {environment.path.name}")
            with files.disk_full_explained(environment.path.parent):
                make()
    return environment


def locate(kind: str, requirements: Sequence[str], *, key: str = "") -> Environment:
    """Where the environment with these requirements is, or would be, in the cache."""
    identity = json.dumps([key or list(requirements), sys.version_info[:2]])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return Environment(path=paths.cache() / "envs" / f"{kind}-{digest}")


def _make(environment: Environment, requirements: Sequence[str]) -> None:
    with _whole_or_gone(environment, requirements) as record:
        _venv(environment)
        if requirements:
            _pip(environment, "install", "--no-input", *_wanted(environment, requirements))
        broken = _broken_companions(environment)
        if broken:
            _pip(environment, "uninstall", "--yes", *broken)
        record["removed"] = broken


def _wanted(environment: Environment, requirements: Sequence[str]) -> list[str]:
    """What pip is told to install; with a mirror, the very files that it locked, and no index."""
    if (folder := paths.mirror()) is None:
        return list(requirements)
    lock = mirror.lock_of(folder, environment.path.name)
    words = ["--isolated", "--no-index", "--find-links", str(folder), "--no-deps"]
    return [*words, "--require-hashes", "--requirement", str(lock)]


def _layer(layer: Environment, below: Environment, wheel: Path) -> None:
    with _above(layer, below, [wheel.name]):
        _pip(layer, "install", "--no-input", "--no-deps", str(wheel))


@contextmanager
def _above(layer: Environment, below: Environment, requirements: Sequence[str]) -> Iterator[None]:
    """Make an environment that imports from another one, too, inside this block."""
    with _whole_or_gone(layer, requirements) as record:
        _venv(layer)
        (site_packages(layer) / "needs.pth").write_text(f"{site_packages(below)}\n")
        yield
        record["below"] = below.path.name


def _venv(environment: Environment) -> None:
    # dspatch's own pip installs into it, which saves copying pip into every environment.
    process.run(
        [sys.executable, "-m", "venv", "--without-pip", environment.path], log=environment.log
    )


def site_packages(environment: Environment) -> Path:
    """Where the packages of an environment lie."""
    return next((environment.path / "lib").glob("python*/site-packages"))


@contextmanager
def _whole_or_gone(
    environment: Environment, requirements: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Make an environment inside this block; its marker is written when the block ends well.

    A virtual environment cannot be moved into place when done, as its scripts hold absolute paths.
    So a half-made one is known by its missing marker, and is thrown away.
    """
    shutil.rmtree(environment.path, ignore_errors=True)
    environment.log.unlink(missing_ok=True)
    record: dict[str, Any] = {"requirements": list(requirements)}
    try:
        yield record
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(environment.path)
        if isinstance(error, ProcessError):
            raise EngineEnvironmentError(
                f"The environment for {', '.join(requirements)} could not be made.",
                why=error.why,
                next=f"read pip's log: {environment.log}",
            ) from None
        raise
    record["shared"] = sharing.share(environment.path, _others(environment))
    files.write_atomically(environment.path / MARKER, (json.dumps(record) + "\n").encode())


def _others(environment: Environment) -> list[Path]:
    """The environments beside one that were made to the end."""
    return [marker.parent for marker in sorted(environment.path.parent.glob(f"*/{MARKER}"))]


def _pip(environment: Environment, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python)]
    process.run(
        [*pip, "--disable-pip-version-check", *arguments],
        env={"PYTHONPATH": ""},
        log=environment.log,
    )


def _broken_companions(environment: Environment) -> list[str]:
    # Python looks in the current folder first; there is nothing to import in the environment's own.
    done = process.run(
        [environment.python, "-c", PROBE, *COMPANIONS],
        env={"PYTHONPATH": ""},
        cwd=environment.path,
    )
    return done.stdout.split()
