"""`dspatch audit --all-releases` and `--write-ranges`: the findings on every release, and what is recorded of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspatch import series
from dspatch.audit import choice, history, page, recorded
from dspatch.audit import finding as findings
from dspatch.audit.choice import Standing
from dspatch.audit.history import History, Work
from dspatch.audit.recorded import Recorded
from dspatch.audit.select import Concern, User, concerning
from dspatch.carry.remote import releases
from dspatch.errors import AuditError
from dspatch.files import write_if_changed

if TYPE_CHECKING:
    from dspatch.console import Console


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A history, how each release stands in it for the user, and the seconds that it took."""

    history: History
    standings: tuple[Standing, ...]
    seconds: float


def run(
    engine: str,
    user: User | None,
    console: Console,
    *,
    only: Sequence[str] = (),
    native: bool = False,
) -> Measured:
    """Hold the findings that concern a user (`None`: all of them) against all releases of interest.

    `only` narrows to ids. Raises `UnknownEngineError`, `PatchFormatError`, `OfflineError` and
    `DownloadError`.
    """
    start = time.monotonic()
    known = series.layered(engine)
    every = findings.load_all(engine, known.traits)
    concerns = (
        [Concern(finding=each, models=(), when=()) for each in every]
        if user is None
        else list(concerning(every, user))
    )
    chosen = [each for each in concerns if not only or each.finding.id in only]
    work = Work(
        engine=engine,
        published=releases.published(engine),
        traits=known.traits,
        native=native,
    )
    with console.working(f"auditing {len(work.published.releases)} releases") as step:
        done = history.measure(work, chosen, step)
    return Measured(
        history=done,
        standings=choice.standings(done, user) if user is not None else (),
        seconds=time.monotonic() - start,
    )


def write_page(done: History, path: Path) -> bool:
    """Write the page of a history; whether anything changed."""
    return write_if_changed(path, page.html(done).encode())


def write_ranges(done: History) -> bool:
    """Write the ranges that were measured to the engine's data file; whether anything changed."""
    text = recorded.written(done.engine, _recorded(done))
    return write_if_changed(recorded.path_of(done.engine), text.encode())


def check_ranges(done: History) -> int:
    """Hold the recorded ranges against those measured; how many findings there are.

    Releases that are newer than the record are no drift. Raises `AuditError` that names each finding
    whose releases are not as recorded.
    """
    known = recorded.load(done.engine)
    measured = _recorded(done)
    drifted = [
        f"{row.concern.finding.id}: {told}"
        for row in done.rows
        if (told := _drift(row.concern.finding.id, known, measured))
    ]
    ids = {row.concern.finding.id for row in done.rows}
    drifted += [
        f"{finding}: there is no such finding" for finding in known.has if finding not in ids
    ]
    if drifted:
        raise AuditError(
            f"the recorded ranges of {done.engine} do not hold for {len(drifted)} findings.",
            why="\n        ".join(drifted),
            next=f"look why; then dspatch audit --engine {done.engine} --write-ranges",
        )
    return len(done.rows)


def _drift(finding: str, known: Recorded, measured: Recorded) -> str:
    if not known.knows(finding):
        return "not recorded yet"
    differing = [
        f"{version} was {known.state(finding, version)}, is {measured.state(finding, version)}"
        for version in measured.releases
        if version in known.releases
        and known.state(finding, version) != measured.state(finding, version)
    ]
    return "; ".join(differing[:4])


def _recorded(done: History) -> Recorded:
    states = {row.concern.finding.id: row.states for row in done.rows}
    return recorded.of_states(done.releases, states)
