"""One pass over a log: the signatures that match, what the log says of itself, its last failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dspatch.audit.signature import Signature
from dspatch.serve.doctor import recognise
from dspatch.serve.doctor.cause import Cause
from dspatch.serve.doctor.failure import Failure, first_in, last_in
from dspatch.serve.doctor.lines import Log
from dspatch.serve.doctor.recognise import Pattern, Recognised
from dspatch.serve.doctor.scan import Hit, Scan


@dataclass(frozen=True, kw_only=True)
class Match:
    """A cause, and the first line that shows it; `also` are the numbers of the other lines."""

    cause: Cause
    hit: Hit[Signature]
    also: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a log holds: matches in its order, and what it says of itself. `cut`: why it ended early."""

    name: str
    lines: int
    bytes: int
    matches: tuple[Match, ...]
    recognised: Recognised
    cut: str = ""


def read(
    log: Log, causes: Sequence[Cause], progress: Callable[[int], None] = lambda done: None
) -> Reading:
    """Read a log once, from its beginning to its end; raises `LogError`, `EmptyLogError`."""
    owners = {id(each): cause for cause in causes for each in cause.signatures}
    signatures: Scan[Signature] = Scan(sought=tuple(s for c in causes for s in c.signatures))
    facts: Scan[Pattern] = Scan(sought=recognise.patterns())
    first: Failure | None = None
    last: Failure | None = None
    for block in log.blocks():
        signatures.block(block)
        facts.block(block)
        first = first or first_in(block)
        last = last_in(block) or last
        progress(log.size)
    return Reading(
        name=log.name,
        lines=log.lines,
        bytes=log.size,
        matches=_matches(signatures.hits, owners),
        recognised=recognise.of_hits(facts.hits, first, last),
        cut=log.cut,
    )


def _matches(hits: Sequence[Hit[Signature]], owners: dict[int, Cause]) -> tuple[Match, ...]:
    """The hits of each cause together, at its first and, on one line, most certain one."""
    grouped: dict[str, list[Hit[Signature]]] = {}
    for hit in hits:
        grouped.setdefault(owners[id(hit.sought)].id, []).append(hit)
    found = []
    for group in grouped.values():
        first = min(group, key=lambda hit: hit.number)
        also = dict.fromkeys(hit.number for hit in group if hit.number != first.number)
        found.append(Match(cause=owners[id(first.sought)], hit=first, also=tuple(also)))
    return tuple(sorted(found, key=lambda match: match.hit.number))
