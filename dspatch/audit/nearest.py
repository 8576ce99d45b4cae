"""Which release a source is nearest to, and which of the files that were read are not that release's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch import pins, pipconfig
from dspatch.audit.answer import State
from dspatch.audit.recorded import Recorded
from dspatch.audit.source import Source
from dspatch.carry.remote import releases, remote
from dspatch.carry.remote.ranges import Traffic
from dspatch.errors import DspatchError

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

    from dspatch.carry.remote.releases import Published, Release

TRIED = 6  # releases whose directories are read, about 0.2 MB each


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """A release, the files read that are not its own, and how many were compared."""

    version: str
    differing: tuple[str, ...]
    compared: int


def nearest(
    source: Source, states: Mapping[str, State], recorded: Recorded, traffic: Traffic
) -> Nearest | None:
    """The release that most of the files read are equal to; the newest where several are.

    Only releases are tried whose findings are most like those seen; the source's own where its
    version is known. `None` when no index can be asked, or none of them has a wheel.
    """
    try:
        known = releases.published(source.engine, prereleases=True, yanked=True)
        tried = _candidates(source, states, recorded, known)
        ours = _ours(source)
        with pipconfig.client(pipconfig.load()) as client:
            found = [_compared(source.engine, ours, each, client, traffic) for each in tried]
    except DspatchError:
        return None
    best = min(found, key=lambda each: len(each.differing), default=None)
    return best if best is not None and best.compared else None


def _candidates(
    source: Source, states: Mapping[str, State], recorded: Recorded, known: Published
) -> Sequence[Release]:
    own = known.release(source.version.partition("+")[0]) if source.version else None
    if own is not None:
        tried = [own]
    elif not recorded.releases:
        tried = list(reversed(known.releases))
    else:
        newest_first = [known.release(version) for version in reversed(recorded.releases)]
        tried = [each for each in newest_first if each is not None]
        tried.sort(key=lambda each: _unlike(each.version, states, recorded))
    return [each for each in tried if each.wheel is not None][:TRIED]


def _unlike(version: str, states: Mapping[str, State], recorded: Recorded) -> int:
    """How many findings a release was seen to have otherwise."""
    seen = {finding: recorded.state(finding, version) for finding in states}
    return sum(got is not None and got != states[finding] for finding, got in seen.items())


def _ours(source: Source) -> dict[str, str | None]:
    """The hash of each path of the engine's package that was read, `None` where it is not there."""
    package = pins.engine(source.engine).package
    paths = [path for path in source.looked_at if path.partition("/")[0] == package]
    return {path: _hash(source.read(path)) for path in paths}


def _compared(
    engine: str,
    ours: Mapping[str, str | None],
    release: Release,
    client: PyPIClient,
    traffic: Traffic,
) -> Nearest:
    assert release.wheel is not None
    wheel = remote.open_wheel(pins.engine(engine).sdist, release.wheel, client, traffic)
    theirs = {path: wheel.members[path].sha256 for path in ours if path in wheel.members}
    return Nearest(
        version=release.version,
        differing=tuple(path for path, sha256 in ours.items() if sha256 != theirs.get(path)),
        compared=len([path for path, sha256 in ours.items() if sha256 or path in theirs]),
    )


def _hash(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None
