"""`dspatch build-wheel --mode source`: a wheel compiled here from a patched tree, to start from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from packaging.version import Version

from dspatch import pins
from dspatch.checkout import cache_of
from dspatch.console import Console
from dspatch.engines.environment import Environment, site_packages
from dspatch.errors import SourceBuildError
from dspatch.files import sha256
from dspatch.job import Job
from dspatch.pins import Accepted, Base, Bound, Build, Pin, Target
from dspatch.pins.needs import requirement
from dspatch.wheel.base import open_wheel
from dspatch.wheel.requirements import changed, stated
from dspatch.wheel.source import (
    archs,
    asked,
    fetched,
    lock,
    needs,
    preflight,
    sources,
    toolchain,
    toolkit,
)
from dspatch.wheel.source.asked import Asked
from dspatch.wheel.source.compiling import Workshop, compiled
from dspatch.wheel.source.fetched import Handed
from dspatch.wheel.source.recipe import Recipe, recipe
from dspatch.wheel.source.toolchain import Toolchain

WHY_SAME = "compiled from the patched tree, which has this change"


@dataclass(frozen=True, kw_only=True)
class How:
    """How to build: the device (the job's target when left out), another torch, and how many processes.

    Of a torch that is left out the pin says which, or else the release itself. `archs` are CUDA
    architectures; `clones` is a folder with clones of what the build fetches by git.
    """

    device: str | None = None
    torch: str | None = None
    jobs: int | None = None
    archs: tuple[str, ...] = ()
    clones: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A build that can begin: recipe, environment and its lock; `found` is what compiles.

    `asked` is what the tree asks for, `archs` the CUDA architectures that were asked for, `chosen`
    the variable that names them to the build, `home` a CUDA toolkit that was made whole for it.
    """

    job: Job
    pin: Pin
    recipe: Recipe
    environment: Environment
    lock: str
    found: Toolchain
    jobs: int
    asked: Asked
    chosen: Mapping[str, str]
    archs: tuple[str, ...]
    clones: Path | None
    home: Path | None

    @property
    def folder(self) -> Path:
        """Where the sources, the objects and the log of the build lie."""
        return folder_of(self.job, self.recipe.device)

    @property
    def inputs(self) -> list[object]:
        """All that the compiled members depend on beside the tree."""
        bounds = [each.requirement for each in self.bounds]
        others = [project.commit for _, project in self.asked.pinned]
        own = ["source", self.recipe.device, self.lock, self.found.name, self.settings, bounds]
        return [*own, others] if others else [*own]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """What narrows the requirements of the wheel."""
        return self._pinned.bounds if self._pinned else ()

    @property
    def _pinned(self) -> Build | None:
        """What the pin says of this build; nothing of one for another device than the target's."""
        pinned = self.pin.build(self.job.id.target)
        return pinned if pinned and self.recipe.device == pinned.target else None

    @property
    def pinned_settings(self) -> dict[str, str]:
        """The variables that the pin sets, each with the user's own value where the environment has one."""
        told = self._pinned.settings if self._pinned else ()
        return {each.variable: os.environ.get(each.variable, each.value) for each in told}

    @property
    def settings(self) -> dict[str, str]:
        """Variables that change what is compiled: the user's, else the pin's, and architectures that were asked for."""
        own = {name: os.environ[name] for name in self.recipe.settings if name in os.environ}
        return {**self.pinned_settings, **own, **self.chosen}

    @property
    def told(self) -> dict[str, object]:
        """The build as a receipt states it."""
        return {
            "device": self.recipe.device,
            "compilers": self.found.name,
            "settings": self.settings,
            "jobs": self.jobs,
            "bounds": [asdict(each) for each in self.bounds],
            "fetched": [project.as_dict() for _, project in self.asked.pinned],
            "lock": self.lock.splitlines(),
        }


def usual(pin: Pin, target: str) -> How | None:
    """How a target is built when nobody says: compiled where its pin says so, else on a base wheel."""
    return How() if pin.build(target) else None


def folder_of(job: Job, device: str) -> Path:
    """Where the build of a device lies in a job's folder."""
    return job.folder / "build" / device


def prepare(job: Job, content: Mapping[str, Any], pin: Pin, how: How, console: Console) -> Prepared:
    """Look whether this machine can build, and make the environment to build in.

    Raises `MissingToolsError`, `SourceBuildError` or `EngineEnvironmentError`.
    """
    device = how.device or job.id.target
    chosen = recipe(job.id.engine, device)
    _refuse_wheel(content, pin)
    wanted = archs.setting(chosen, how.archs)
    folder = folder_of(job, device)
    folder.mkdir(parents=True, exist_ok=True)
    found = toolchain.look(folder, chosen.headers)
    joining = toolkit.packages(chosen, found)
    preflight.check(chosen, replace(found, headers=found.headers | set(joining)))
    archs.check(toolchain.nvcc(os.environ), found.nvcc, how.archs)
    with cache_of(job.id.engine) as repo:
        tree, words = content["patched"]["tree"], os.environ.get("CMAKE_ARGS", "")
        torch = how.torch or (pinned.torch if (pinned := pin.build(job.id.target)) else None)
        needed = asked.by_tree(
            repo, tree, chosen, [*chosen.needed(found.nvcc), *joining.values()], torch, words
        )
    if how.torch is not None:
        needs.refuse_torch(needed.packages)
    with console.working(f"preparing the build of {job.id}") as step:
        locked = lock.locked(needed.packages, folder, step)
        # Gigabytes of torch are not fetched for a build that is refused then.
        if (cuda := lock.cuda_of(locked)) is not None:
            preflight.check_cuda(chosen, found, cuda)
        environment = lock.ensure(f"{job.id.engine}-build", folder, step)
    _check(chosen, found, needed, environment, locked)
    home = None
    if joining:
        own, site = toolchain.toolkit(os.environ), site_packages(environment)
        home = toolkit.joined(own, site, folder.resolve() / "toolkit")
    return Prepared(
        job=job,
        pin=pin,
        recipe=chosen,
        environment=environment,
        lock=locked,
        found=found,
        jobs=preflight.jobs(chosen, found, how.jobs),
        asked=needed,
        chosen=wanted,
        archs=how.archs,
        clones=how.clones,
        home=home,
    )


def _check(
    chosen: Recipe, found: Toolchain, needed: Asked, environment: Environment, locked: str
) -> None:
    """What can be told only when the build's environment is there."""
    torch = site_packages(environment) / "torch"
    # Compiled members that are not bound to torch may be of any CUDA.
    if lock.version_of(locked, "torch") is not None:
        preflight.check_cuda(chosen, found, toolchain.cuda_of(torch) if torch.is_dir() else None)
    preflight.check_cmake(chosen, needed.cmake, toolchain.cmake(environment.python.parent))


def build(
    prepared: Prepared,
    content: Mapping[str, Any],
    changed: Iterable[str],
    console: Console,
    *,
    epoch: int,
) -> tuple[Base, Path]:
    """Compile the patched tree; returns the wheel as the base of an overlay that changes nothing more.

    `epoch` is SOURCE_DATE_EPOCH in seconds. Raises `SourceBuildError`.
    """
    here = prepared.folder
    with cache_of(prepared.job.id.engine) as repo, repo.reading() as read:
        sources.put(here / "src", repo.entries(content["patched"]["tree"]), read)
    with console.working("putting the sources of other projects in place") as step:
        handed = fetched.put(
            prepared.asked.pinned, here.resolve() / "fetched", prepared.clones, step
        )
    for one in prepared.asked.loose:
        console.note(f"{one.name} {one.tag} of {one.repository} is left to the build to fetch")
    shop = Workshop(
        sources=here / "src",
        dist=here / "dist",
        log=here / "build.log",
        environment=prepared.environment,
        variables=_variables(prepared, handed),
        epoch=epoch,
        inputs=json.dumps(prepared.inputs, indent=0),
    )
    console.note(f"compiling with {prepared.found.name}, {prepared.jobs} at once; log: {shop.log}")
    if prepared.recipe.cuda and not prepared.found.ccache:
        console.note("ccache is not installed; with it, a build that begins anew takes minutes")
    with console.working(f"building {prepared.job.id} for {prepared.recipe.device}") as step:
        path = compiled(shop, step)
    archs.check_made(path, prepared.archs, shop.log)
    return _base(prepared, path, changed), path


def _variables(prepared: Prepared, handed: Sequence[Handed]) -> dict[str, str]:
    recipe, found = prepared.recipe, prepared.found
    variables = recipe.environment(version=prepared.pin.version, jobs=prepared.jobs)
    if found.ccache:
        variables |= {name: os.environ.get(name, "ccache") for name in recipe.ccache}
    if prepared.home is not None:
        variables |= {
            "CUDA_HOME": str(prepared.home),
            "CUDA_PATH": str(prepared.home),
            "CUDACXX": str(prepared.home / "bin" / "nvcc"),
        }
    elif recipe.cuda and "CUDA_HOME" in os.environ:
        # torch's build looks there, CMake and torch's modules for it do not.
        own_nvcc = os.environ.get("CUDACXX", toolchain.nvcc(os.environ))
        variables |= {"CUDACXX": own_nvcc, "CUDA_PATH": os.environ["CUDA_HOME"]}
    if handed:
        own = os.environ.get("CMAKE_TOOLCHAIN_FILE")
        path = fetched.toolchain(handed, prepared.folder.resolve() / "toolchain.cmake", own)
        variables |= {"CMAKE_TOOLCHAIN_FILE": str(path)}
    return {**variables, **prepared.pinned_settings, **prepared.chosen}


def requirements(prepared: Prepared, path: Path) -> dict[str, str]:
    """The lines of a compiled wheel's METADATA that are bound: torch to the one that it was built with.

    The rest by what the pin says. Raises `WheelError` for what the wheel does not ask for.
    """
    requires = stated(path)
    found = changed(requires, [each.requirement for each in prepared.bounds])
    torch = lock.version_of(prepared.lock, "torch")
    if torch is None or prepared.recipe.compiler is None:
        return found
    return {**found, **needs.torch_lines(requires, Version(torch).public)}


def compiled_wheel(job: Job, told: Mapping[str, Any], filename: str) -> Path:
    """Where the compiled wheel lies that a build tells of."""
    return folder_of(job, str(told["device"])) / "dist" / filename


def kept(job: Job, told: Mapping[str, Any], filename: str) -> Path:
    """The compiled wheel that an overlay was made from. Raises `SourceBuildError` when it is gone."""
    path = compiled_wheel(job, told, filename)
    if not path.is_file():
        raise SourceBuildError(
            f"{path} is not there any more.",
            why="a wheel built from source is held against what was compiled",
            next="dspatch build-wheel --mode source",
        )
    return path


def _base(prepared: Prepared, path: Path, changed: Iterable[str]) -> Base:
    engine = pins.engine(prepared.pin.engine)
    target = cast("Target", prepared.job.id.target)
    same = tuple(Accepted(path=each, reason=WHY_SAME) for each in sorted(changed))
    return Base(
        target=target,
        project=engine.package,
        filename=path.name,
        sha256=sha256(path),
        size=path.stat().st_size,
        platform=path.stem.rpartition("-")[2],
        torch=_torch(prepared, path),
        accepted=(*engine.accepted(target), *same),
    )


def _torch(prepared: Prepared, path: Path) -> str | None:
    """The torch that a compiled wheel is for: the one it was built with, else what it states."""
    version = lock.version_of(prepared.lock, "torch")
    if version is not None:
        return f"torch=={version}"
    with open_wheel(path) as wheel:
        return requirement(wheel.read_info("METADATA"), "torch", path.stem)


def _refuse_wheel(content: Mapping[str, Any], pin: Pin) -> None:
    if content["checkout"]["source"] == "wheel":
        kind = "sdist" if pin.source("sdist") else "git"
        raise SourceBuildError(
            "This job's source is a wheel, which holds neither native sources nor what builds them.",
            why=f"{pin.engine} {pin.rev} has them in its {kind}",
            next=f"dspatch apply --source {kind}, and build again",
        )
