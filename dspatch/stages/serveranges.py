"""`dspatch serve flags --write-ranges`: every release's options, variables and metrics, read and recorded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import pipconfig
from dspatch.audit.source import Source, of_release
from dspatch.carry.remote import everyrelease, releases
from dspatch.carry.remote.ranges import Traffic
from dspatch.carry.remote.releases import Release
from dspatch.errors import ServeFlagsError
from dspatch.files import write_if_changed
from dspatch.serve import engines, environment, known, metrics, options
from dspatch.serve.engines import Facts
from dspatch.serve.known import KINDS, Kind, Known
from dspatch.serve.reading.modules import Modules

if TYPE_CHECKING:
    from dspatch.console import Console

Names = Mapping[Kind, Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was read of all releases, and what it cost."""

    engine: str
    known: Known
    traffic: Traffic
    seconds: float


def run(engine: str, console: Console) -> Measured:
    """Read every release of an engine. Raises the errors of reading an index, and `ServeFlagsError`
    for a release of which not all could be read: a hole is no absence."""
    start, traffic = time.monotonic(), Traffic()
    facts = engines.facts(engine)
    listed = releases.published(engine).releases
    with (
        console.working(f"reading {len(listed)} releases") as step,
        pipconfig.client(pipconfig.load()) as client,
    ):

        def one(release: Release) -> Names:
            return names(of_release(engine, release, client, traffic, native=False), facts)

        def told(done: int) -> None:
            step(f"{done}, {traffic.bytes / 1e6:.0f} MB")

        found = everyrelease.each(listed, one, told)
    return Measured(
        engine=engine,
        known=known.of_names(found),
        traffic=traffic,
        seconds=time.monotonic() - start,
    )


def names(source: Source, facts: Facts) -> Names:
    """The names that one source has, by kind."""
    modules = Modules(facts.package, source.read)
    read = {each.name: options.read(source, facts, each, modules) for each in facts.servers}
    servers = {name: taken for name, taken in read.items() if taken is not None}
    variables = environment.read(source, facts)
    exported = metrics.read(source, facts)
    lost = [hole.why for each in servers.values() for hole in each.holes]
    lost += [path for each in servers.values() for path in each.unparsed]
    lost += variables.unread
    if exported.there:  # old releases export nothing
        lost += exported.unread
    if lost:
        raise ServeFlagsError(
            f"not all of {facts.engine} {source.version} could be read.", why="; ".join(lost)
        )
    return {
        "commands": list(servers),
        "options": {name for each in servers.values() for name in each.table},
        "environment": list(variables.variables),
        "metrics": [name for name, each in exported.samples.items() if not each.hidden],
        "hidden": [name for name, each in exported.samples.items() if each.hidden],
    }


def write(done: Measured) -> bool:
    """Write what was read; whether anything changed."""
    text = known.written(done.engine, done.known)
    return write_if_changed(known.path_of(done.engine), text.encode())


def check(done: Measured) -> None:
    """Hold the record against what was read; raises `ServeFlagsError` that names each difference."""
    recorded = known.load(done.engine)
    differing = list(differences(recorded, done.known))
    if differing:
        raise ServeFlagsError(
            f"the record of {done.engine} does not hold for {len(differing)} names.",
            why="\n        ".join(differing[:20]),
            next=f"dspatch serve flags --engine {done.engine} --write-ranges",
        )


def differences(recorded: Known, measured: Known) -> Iterable[str]:
    """The names whose releases are not as recorded, on the releases that both have."""
    both = [each for each in measured.releases if each in recorded.releases]
    for kind in KINDS:
        every = {*recorded.names.get(kind, {}), *measured.names.get(kind, {})}
        for name in sorted(every):
            had = [each for each in recorded.releases_of(kind, name) if each in both]
            has = [each for each in measured.releases_of(kind, name) if each in both]
            if had != has:
                yield f"{name}: was in {', '.join(had) or 'none'}, is in {', '.join(has) or 'none'}"
