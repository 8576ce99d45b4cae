"""`dspatch bench load`: how fast a server answers under load, beside a peer that takes turns with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dspatch import engines, paths
from dspatch.bench import generator, rounds
from dspatch.bench.generator import Load
from dspatch.bench.rounds import METRICS, Compared, Round
from dspatch.console import Console
from dspatch.engines.environment import Environment
from dspatch.errors import LoadError
from dspatch.job import locked, prepare_work
from dspatch.stages import prove_any, prove_api
from dspatch.stages.prove_any import Subject

NAMES = ("subject", "peer")
WARM = 4  # requests that no round counts


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The load of a round, how many rounds, and the small model that is served."""

    load: Load
    rounds: int = 5
    model: str = prove_api.DEFAULT


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Every round of each server, and each metric compared; the files that hold all of it."""

    names: dict[str, str]
    wanted: Wanted
    rounds: dict[str, tuple[Round, ...]]
    compared: tuple[Compared, ...]
    files: tuple[Path, ...]

    @property
    def errors(self) -> int:
        """Requests that failed, over all rounds."""
        return sum(one.errors for each in self.rounds.values() for one in each)


def run(subject: Subject, peer: Subject | None, wanted: Wanted, console: Console) -> Loaded:
    """Start both servers on loopback, load them in turns, compare; without a peer the subject twice.

    Raises `LoadError` when a load cannot be made, `EngineError` when a server does not start.
    """
    subjects = {"subject": subject, "peer": peer or subject}
    for each in subjects.values():
        prove_any.need_machine(each)
    prepare_work()
    folder = paths.work() / "bench" / "load"
    with locked(folder, "a load"), console.working("load") as step:
        made = generator.ensure(step)
        with _serving(subjects, wanted, folder, step) as served:
            found = _rounds(made, served, wanted, folder, step)
    return _whole({name: each.name for name, each in subjects.items()}, wanted, found, folder)


@contextmanager
def _serving(
    subjects: dict[str, Subject], wanted: Wanted, folder: Path, step: engines.Progress
) -> Iterator[dict[str, tuple[str, Path]]]:
    """The address and the checkpoint of each server; both run, and one at a time has work."""
    with ExitStack() as stack:
        found = {}
        for name, each in subjects.items():
            step(f"starting the server of the {name}")
            service = prove_api.service_of(each.engine)
            one = prove_api.running(
                each, service, wanted.model, folder / name, prove_api.Limits(), step
            )
            found[name] = stack.enter_context(one)
        yield found


def _rounds(
    made: Environment,
    served: dict[str, tuple[str, Path]],
    wanted: Wanted,
    folder: Path,
    step: engines.Progress,
) -> dict[str, tuple[Round, ...]]:
    found: dict[str, list[Round]] = {name: [] for name in served}
    warm = replace(wanted.load, requests=WARM)
    for name, (url, checkpoint) in served.items():
        generator.round_of(made, url, checkpoint, warm, folder / name / "warm")
    for name in rounds.turns(wanted.rounds, list(served)):
        number = len(found[name]) + 1
        step(f"round {number} of {wanted.rounds}: the {name}")
        url, checkpoint = served[name]
        out = folder / name / f"round-{number}"
        found[name].append(generator.round_of(made, url, checkpoint, wanted.load, out))
    return {name: tuple(each) for name, each in found.items()}


def _whole(
    names: dict[str, str], wanted: Wanted, found: dict[str, tuple[Round, ...]], folder: Path
) -> Loaded:
    from dspatch.bench import page
    from dspatch.stages import show_load

    lost = [n for n, each in found.items() for one in each if not one.completed]
    ours, theirs = (found[name] for name in NAMES)
    compared = () if lost else tuple(rounds.compare(ours, theirs, name) for name in METRICS)
    files = (folder / "load.json", folder / "load.html")
    done = Loaded(names=names, wanted=wanted, rounds=found, compared=compared, files=files)
    page.write(files, as_dict(done), show_load.page_of(done))
    return done


def check(done: Loaded) -> None:
    """Raise `LoadError` when requests failed: times of those that are left say little."""
    if not done.errors and done.compared:
        return
    per = {name: sum(one.errors for one in each) for name, each in done.rounds.items()}
    raise LoadError(
        f"{done.errors} requests failed.",
        why=", ".join(f"{done.names[name]}: {count}" for name, count in per.items()),
        next=f"read the servers' logs beside {done.files[0]}",
    )


def as_dict(done: Loaded) -> dict[str, Any]:
    """The whole result as JSON values."""
    return {
        "servers": done.names,
        "model": done.wanted.model,
        "load": asdict(done.wanted.load),
        "rounds": {name: [asdict(one) for one in each] for name, each in done.rounds.items()},
        "compared": [asdict(one) for one in done.compared],
        "errors": done.errors,
    }
