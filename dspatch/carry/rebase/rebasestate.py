"""A rebase that is under way, in its job's folder: enough to go on, to skip, or to undo it after any kill."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dspatch.errors import RebaseStoppedError
from dspatch.files import write_atomically
from dspatch.job import Job

# working: between two stops, to be done again when cut off. stopped: the tree is the user's.
Phase = Literal["working", "stopped", "aborting"]
FILE = "rebase.json"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a rebase was asked for; `names` are the patches that it is about, none means all."""

    engine: str
    rev: str
    onto: str
    target: str = "cpu"
    variants: tuple[str, ...] = ()
    repo: str | None = None
    base: str | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stand:
    """Where a job's tree stood: its pristine and its patched commit."""

    pristine: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A form that this rebase wrote, and what the file held before (base64, `None` for nothing)."""

    path: str
    old: str | None

    @property
    def data(self) -> bytes | None:
        """The file's bytes before."""
        return None if self.old is None else base64.b64decode(self.old)


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a rebase is: `base` is the commit of the good patches, `touched` what dspatch laid over it.

    `before` and `receipt` are the job's tree and its receipt as they were, `None` where there was none.
    """

    wanted: Wanted
    phase: Phase
    before: Stand | None
    receipt: str | None = None
    patch: str | None = None
    base: str | None = None
    touched: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()

    def with_recorded(self, path: Path) -> State:
        """The state that can take a form back which is about to be written."""
        if any(each.path == str(path) for each in self.recorded):
            return self
        old = base64.b64encode(path.read_bytes()).decode() if path.exists() else None
        return replace(self, recorded=(*self.recorded, Recorded(path=str(path), old=old)))


def load(job: Job) -> State | None:
    """The rebase of a job, `None` when none is under way. Raises `RebaseStoppedError` for a damaged file."""
    return _load(job.folder)


def _load(folder: Path) -> State | None:
    path = folder / FILE
    try:
        return _state(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise RebaseStoppedError(
            f"{path} cannot be read.",
            why=str(error) or type(error).__name__,
            next="move the file away; the job's tree stays as it is",
        ) from None


def save(job: Job, state: State) -> None:
    """Write the state in one step."""
    text = json.dumps(asdict(state), indent=2, sort_keys=True) + "\n"
    write_atomically(job.folder / FILE, text.encode())


def clear(job: Job) -> None:
    """Forget the rebase of a job."""
    (job.folder / FILE).unlink(missing_ok=True)


def refuse(job: Job) -> None:
    """Raise `RebaseStoppedError` while a rebase has the job's tree."""
    state = load(job)
    if state is not None:
        at = f"; it stopped at {state.patch}" if state.patch else ""
        raise RebaseStoppedError(
            f"a rebase onto {state.wanted.onto} is under way in {job.folder}.",
            why=f"it was started from {state.wanted.rev}{at}",
            next="dspatch patch rebase --continue, --skip or --abort",
        )


def under_way(work: Path) -> list[tuple[Path, State]]:
    """The folders of the jobs that have a rebase under way, and how far it is."""
    found = sorted(path.parent for path in (work / "jobs").glob(f"*/{FILE}"))
    states = [(folder, _load(folder)) for folder in found]
    return [(folder, state) for folder, state in states if state is not None]


def _state(data: dict[str, Any]) -> State:
    wanted, before = data["wanted"], data["before"]
    lists = {key: tuple(wanted[key]) for key in ("variants", "names")}
    return State(
        wanted=Wanted(**{**wanted, **lists}),
        phase=data["phase"],
        before=Stand(**before) if before else None,
        receipt=data["receipt"],
        patch=data["patch"],
        base=data["base"],
        touched=tuple(data["touched"]),
        skipped=tuple(data["skipped"]),
        recorded=tuple(Recorded(**each) for each in data["recorded"]),
    )
