"""`dspatch conformance --env` and `--wheel`: an engine that no job built, held against transformers."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from dspatch import engines, paths, pins, receipt, variants
from dspatch.audit import environment
from dspatch.console import Console
from dspatch.errors import IncompatibleBaseError, NoGpuError, WheelError
from dspatch.job import Job, locked, prepare_work
from dspatch.stages import prove, proving
from dspatch.stages.proving import Proven, Wanted
from dspatch.wheel.compatible import check_base
from dspatch.wheel.names import WheelName


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine somewhere: `python` gives the interpreter that has it, once it is asked for.

    `key` tells apart the folders of the reports; `target` is what the engine was built for. What a `job`
    built goes by the job's name, and its reports into the job's folder.
    """

    engine: str
    version: str
    target: str
    where: str
    key: str
    python: Callable[[engines.Progress], Path]
    wheel: Path | None = None
    job: Job | None = None

    @property
    def name(self) -> str:
        """What the report calls it."""
        if self.job is not None:
            return str(self.job.id)
        return f"{self.engine} {self.version} ({self.where})"

    @property
    def folder(self) -> Path:
        """Where its report and its logs go."""
        if self.job is not None:
            return self.job.folder
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:8]
        version = re.sub(r"[^\w.+-]", "-", self.version)
        return paths.work() / "conformance" / f"{self.engine}-{version}-{digest}"


def in_environment(given: str, engine: str) -> Subject:
    """The engine that a Python, or a virtual environment's folder, has installed; nothing is imported.

    Raises `EngineEnvironmentError` when there is no such Python, it does not start, or the engine
    is not among its packages.
    """
    python = environment.interpreter(given)
    found = environment.find(python, engine)
    return Subject(
        engine=engine,
        version=found.version,
        target=_target(engine, found.project, found.version),
        where=str(python),
        key=str(python),
        python=lambda step: python,
    )


def of_wheel(path: Path, engine: str) -> Subject:
    """A wheel, to be installed in an environment of its own.

    Raises `WheelError` when it is no wheel of the engine, `IncompatibleBaseError` when this machine
    cannot run it.
    """
    if not path.is_file():
        raise WheelError(
            f"there is no wheel at {path}.",
            next="give a file; one on an index is fetched with: pip download --no-deps PROJECT==VERSION",
        )
    name, facts = WheelName.parse(path.name), pins.engine(engine)
    if canonicalize_name(name.project) not in map(canonicalize_name, facts.projects):
        raise WheelError(
            f"{path.name} is no wheel of {engine}.",
            why=f"those are named {', '.join(facts.projects)}",
            next="name the wheel's engine with --engine",
        )
    _need_runnable(path, name)
    return Subject(
        engine=engine,
        version=str(name.version),
        target=_target(engine, name.project, str(name.version)),
        where=path.name,
        key=str(path.resolve()),
        python=lambda step: proving.environment(engine, path, step),
        wheel=path,
    )


def of_job(job: Job) -> Subject:
    """The wheel that a job built, for what proves either. Raises `NoJobError` before build-wheel."""
    wheel = job.dist / receipt.require(job, "build-wheel")["wheel"]["path"]
    return Subject(
        engine=job.id.engine,
        version=prove.version_of(wheel.name),
        target=job.id.target,
        where=wheel.name,
        key=str(wheel),
        python=lambda step: proving.environment(job.id.engine, wheel, step),
        wheel=wheel,
        job=job,
    )


def _need_runnable(path: Path, name: WheelName) -> None:
    try:
        check_base(path)
    except IncompatibleBaseError as error:
        here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        raise IncompatibleBaseError(
            error.what,
            why=error.why,
            next=f"give the wheel of this Python ({here}): pip download --no-deps"
            f" {name.project}=={name.version.public}, or run dspatch with the Python of this one",
        ) from None


def run(subject: Subject, console: Console, wanted: Wanted) -> Proven:
    """Run the suite on it and write the report; without named models, on the whole family's.

    Raises `NoGpuError` for a build for GPUs on a machine without one.
    """
    wheel = subject.wheel
    converts = wheel is not None and proving.converts(subject.engine, subject.version, wanted)
    wanted = proving.settled(wanted, "cpu" if converts else subject.target)
    proving.need_tolerances(wanted.dtype)
    if wheel is not None and converts:
        return _converted(subject, wheel, console, wanted)
    proving.need_computed_in(subject.engine, wanted.dtype)
    models = proving.models_to_run(subject.engine, subject.target, wanted, variants.names())
    proving.need_limits(subject.engine, subject.target, models, wanted)
    chosen = engines.get(subject.engine)
    need_machine(subject)
    if why := engines.unserved(subject.engine, getattr(chosen, "SERVED", ()), subject.version):
        console.note(f"conformance: {why}")
    proving.need_dtype(models, wanted.dtype)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        return proving.measure(
            subject.name,
            engine=subject.engine,
            version=subject.version,
            target=subject.target,
            python=subject.python(step),
            folder=subject.folder,
            models=models,
            wanted=wanted,
            step=step,
        )


@contextmanager
def opened(subject: Subject, console: Console) -> Iterator[tuple[Path, engines.Progress]]:
    """Its Python, made where need be, and where to tell of progress; nobody else writes into its folder.

    Raises as `need_machine`, before anything is made.
    """
    need_machine(subject)
    prepare_work()
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        yield subject.python(step), step


def _converted(subject: Subject, wheel: Path, console: Console, wanted: Wanted) -> Proven:
    prepare_work()
    models = proving.models_to_convert(wanted, variants.names())
    with locked(subject.folder, subject.name), console.working("conformance") as step:
        return proving.convert(
            subject.name,
            wheel=wheel,
            version=subject.version,
            folder=subject.folder,
            models=models,
            wanted=wanted,
            step=step,
        )


def _target(engine: str, project: str, version: str) -> str:
    """`cpu` for a build that says so in its project or its version, else what its GPUs need."""
    local = version.partition("+")[2]
    cpu = pins.engine(engine).bases.get("cpu", "")
    own = "cpu" in local or canonicalize_name(project) == canonicalize_name(cpu)
    return "cpu" if own else "cuda"


def need_machine(subject: Subject) -> None:
    """Raise `NoGpuError` for a build for GPUs without one, or for what else it lacks here."""
    if subject.job is not None:
        prove.need_machine(subject.job)
        return
    without = NoGpuError(
        f"{subject.name} is a build for GPUs; none is here.",
        why="nvidia-smi is not on PATH, and neither project nor version says cpu",
        next="run it on a machine with a GPU, or name a CPU build",
    )
    proving.need_machine(subject.engine, subject.target, without)
