"""Every finding on every published release: each release read once, its answers kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dspatch import pipconfig
from dspatch.audit import judge, kept, source
from dspatch.audit.answer import State
from dspatch.audit.finding import Finding
from dspatch.audit.select import Concern
from dspatch.carry.remote import everyrelease
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Published, Release
from dspatch.traits import Trait

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient


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
    """The states of each release: those that are kept, the others by reading it; and notes."""
    keys = {finding.id: kept.key(finding, work.traits) for finding in asked}
    releases = work.published.releases
    known = {
        release.version: kept.read(work.engine, release, native=work.native) for release in releases
    }
    waiting = [each for each in releases if not known[each.version].keys() >= set(keys.values())]

    def told(done: int) -> None:
        done += len(releases) - len(waiting)
        step(f"{done} of {len(releases)}, {work.traffic.bytes / 1e6:.0f} MB")

    read: dict[str, tuple[dict[str, State], str]] = {}
    if waiting:
        with pipconfig.client(pipconfig.load()) as client:
            one = partial(_read, work, client, asked, keys, known)
            read = everyrelease.each(waiting, one, told)
    states = {
        version: read[version][0] if version in read else _states(got, keys)
        for version, got in known.items()
    }
    return states, sorted(note for _, note in read.values() if note)


def _read(
    work: Work,
    client: PyPIClient,
    asked: Sequence[Finding],
    keys: Mapping[str, str],
    known: Mapping[str, Mapping[str, State]],
    release: Release,
) -> tuple[dict[str, State], str]:
    """The states of a release, and a note: all are unknown where it cannot be read."""
    before = known[release.version]
    missing = [finding for finding in asked if keys[finding.id] not in before]
    try:
        opened = source.of_release(work.engine, release, client, work.traffic, native=work.native)
        judge.fetch(missing, opened, work.traits)
        judged = judge.judge(missing, opened, work.traits)
    except everyrelease.OF_ONE as error:
        return {finding.id: "unknown" for finding in asked}, everyrelease.unread(release, error)
    merged = {**before, **{keys[each.finding.id]: each.answer.state for each in judged}}
    kept.write(work.engine, release, merged, native=work.native)
    return _states(merged, keys), ""


def _states(known: Mapping[str, State], keys: Mapping[str, str]) -> dict[str, State]:
    return {finding: known[key] for finding, key in keys.items()}
