"""Every finding on every published release: each release read once, its answers kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from dspatch import pins, pipconfig
from dspatch.audit import judge, kept, source
from dspatch.audit.answer import State
from dspatch.audit.finding import Finding
from dspatch.audit.select import Concern
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releasefiles import ReleaseFiles
from dspatch.carry.remote.releases import Published, Release
from dspatch.errors import DownloadError, HashMismatchError, UnsafeArchiveError, WheelError
from dspatch.traits import Trait

JOBS = 6  # releases at once; one index serves them all
# One release's files that cannot be had say nothing of the others.
_OF_THE_RELEASE = (DownloadError, HashMismatchError, UnsafeArchiveError, WheelError)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A finding that concerns the user, and its state on each release."""

    concern: Concern
    states: Mapping[str, State]


@dataclass(frozen=True, kw_only=True)
class History:
    """Findings by release, oldest release first; `notes` says which releases could not be read."""

    engine: str
    releases: tuple[str, ...]
    rows: tuple[Row, ...]
    traffic: Traffic
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Work:
    """What all releases have in common."""

    engine: str
    published: Published
    traits: Mapping[str, Trait]
    native: bool = False
    traffic: Traffic = field(default_factory=Traffic)


def measure(work: Work, concerns: Sequence[Concern], step: Callable[[str], None]) -> History:
    """Hold findings against every release of interest.

    A release that cannot be read has only unknowns, and a note. Raises `OfflineError` when the
    network is needed and not there.
    """
    asked = [concern.finding for concern in concerns]
    states, notes = _all(work, asked, step)
    return History(
        engine=work.engine,
        releases=tuple(release.version for release in work.published.releases),
        rows=tuple(
            Row(
                concern=concern,
                states={version: got[concern.finding.id] for version, got in states.items()},
            )
            for concern in concerns
        ),
        traffic=work.traffic,
        notes=(*work.published.problems, *notes),
    )


def _all(
    work: Work, asked: Sequence[Finding], step: Callable[[str], None]
) -> tuple[dict[str, dict[str, State]], list[str]]:
    found: dict[str, dict[str, State]] = {}
    notes: list[str] = []
    releases = work.published.releases
    with ThreadPoolExecutor(JOBS) as pool:
        futures: dict[Future[dict[str, State]], Release] = {
            pool.submit(_states, work, release, asked): release for release in releases
        }
        try:
            for future in as_completed(futures):
                version = futures[future].version
                try:
                    found[version] = future.result()
                except _OF_THE_RELEASE as error:
                    notes.append(f"{version} could not be read: {error.what} {error.why}")
                    found[version] = {finding.id: "unknown" for finding in asked}
                step(f"{len(found)} of {len(releases)}, {work.traffic.bytes / 1e6:.0f} MB")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {release.version: found[release.version] for release in releases}, sorted(notes)


def _states(work: Work, release: Release, asked: Sequence[Finding]) -> dict[str, State]:
    """The states of one release: those that are kept, the others by reading it."""
    known = kept.read(work.engine, release, native=work.native)
    keys = {finding.id: kept.key(finding, work.traits) for finding in asked}
    missing = [finding for finding in asked if keys[finding.id] not in known]
    if missing:
        fresh = _read(work, release, missing)
        merged = {**known, **{keys[finding]: state for finding, state in fresh.items()}}
        kept.write(work.engine, release, merged, native=work.native)
        known = merged
    return {finding.id: known[keys[finding.id]] for finding in asked}


def _read(work: Work, release: Release, missing: Sequence[Finding]) -> dict[str, State]:
    with pipconfig.client(pipconfig.load()) as client:
        native = work.native or release.wheel is None
        project = pins.engine(work.engine).sdist
        files = ReleaseFiles(project, release, client, work.traffic, native=native)
        opened = source.of_release(work.engine, files)
        judge.fetch(missing, opened, work.traits)
        judged = judge.judge(missing, opened, work.traits)
    return {each.finding.id: each.answer.state for each in judged}
