"""A job's identity and its folder: `vllm-0.27.1-cpu-deepseek-v2-lite` names everything that belongs to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dspatch import paths
from dspatch.errors import LockedError, NoJobError
from dspatch.files import write_atomically

FAMILY = "deepseek"


@dataclass(frozen=True, kw_only=True)
class JobId:
    """What a job is told from others by; no variants means the whole DeepSeek family."""

    engine: str
    rev: str
    target: str
    variants: tuple[str, ...] = ()
    format: str = ""
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        served = "+".join(self.variants) or FAMILY
        rev = self.rev.replace("/", "-")
        asked = "".join(f"-with-{name}" for name in self.extra)
        asked += f"-as-{self.format}" if self.format else ""
        return f"{self.engine}-{rev}-{self.target}-{served}{asked}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job and the folder that holds its tree, wheels, logs, receipts and reports."""

    id: JobId
    folder: Path

    @property
    def tree(self) -> Path:
        """The patched work tree."""
        return self.folder / "tree"

    @property
    def dist(self) -> Path:
        """Where the job's wheels go."""
        return self.folder / "dist"

    @property
    def report(self) -> Path:
        """The folder of the conformance report."""
        return self.folder / "report"

    def receipt(self, stage: str) -> Path:
        """The receipt of a stage."""
        return self.folder / "receipts" / f"{stage}.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other dspatch processes off this job; raises `LockedError` at once when one has it."""
        prepare_work()
        with locked(self.folder, str(self.id)):
            yield


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Make a folder and keep other dspatch processes off it; raises `LockedError` at once."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise LockedError(
            f"another dspatch process is working on {name}.",
            next="wait for it to end and run the command again",
        ) from None


def open_job(job_id: JobId) -> Job:
    """The job of an id; nothing is written."""
    return Job(id=job_id, folder=paths.work() / "jobs" / str(job_id))


def prepare_work() -> None:
    """Make the work folder, which ignores itself for a repository that it may stand in."""
    folder = paths.work()
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        write_atomically(ignore, b"*\n")


def remember(job: Job) -> None:
    """Make a job the one that later commands take by default."""
    write_atomically(paths.work() / "last-job.json", json.dumps(asdict(job.id)).encode())


def last() -> Job:
    """The job applied last in this work folder. Raises `NoJobError` when there is none."""
    path = paths.work() / "last-job.json"
    try:
        return open_job(_id(json.loads(path.read_text())))
    except (OSError, ValueError, TypeError, KeyError):
        raise NoJobError(
            f"no job has been applied in {paths.work()}.",
            next="dspatch apply --engine vllm --rev v0.27.1, or name the job with --engine and --rev",
        ) from None


def _id(data: dict[str, Any]) -> JobId:
    lists = {"variants": tuple(data["variants"]), "extra": tuple(data.get("extra", ()))}
    return JobId(**{**data, **lists})


def find(wanted: JobId) -> Job | None:
    """The applied job of an id, whose revision may also be written as a tag."""
    revs = {wanted.rev, wanted.rev.removeprefix("v")}
    same = replace(wanted, rev="")
    return next(
        (job for job in all_jobs() if job.id.rev in revs and replace(job.id, rev="") == same),
        None,
    )


def all_jobs() -> list[Job]:
    """Every job of the work folder that was applied, by name."""
    found = []
    for path in sorted((paths.work() / "jobs").glob("*/receipts/apply.json")):
        # A damaged receipt belongs to no job that could be named.
        with suppress(OSError, ValueError, TypeError, KeyError):
            job_id = _id(json.loads(path.read_text())["job"])
            found.append(Job(id=job_id, folder=path.parent.parent))
    return found
