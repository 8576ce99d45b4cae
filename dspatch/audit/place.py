"""Where a user says that the engine's source is, and that source opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from dspatch import job, pins, receipt
from dspatch.audit import environment, origins, recorded
from dspatch.audit.nearest import Nearest
from dspatch.audit.source import Source
from dspatch.carry.remote.ranges import Traffic
from dspatch.errors import DownloadError, DspatchError, OfflineError, UnknownRevisionError
from dspatch.pins import lookup


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the engine's source is: a release, a git revision, a work tree, or a Python's packages.

    `wanted` are the names of the models as the user wrote them, for commands that are printed.
    """

    engine: str | None = None
    rev: str | None = None
    repo: str | None = None
    env: str | None = None
    base: str | None = None
    native: bool = False
    wanted: tuple[str, ...] = ()

    def words(self, source: Source, near: Nearest | None) -> list[str]:
        """The options that name the source to `dspatch run`; none for a work tree."""
        if source.kind == "git" and self.rev and self.repo:
            base = self.base or (f"v{near.version}" if near is not None else "")
            return ["--rev", self.rev, "--repo", self.repo, *(["--base", base] if base else [])]
        if source.version is None or source.kind == "folder":
            return []
        return ["--rev", f"v{Version(source.version).public}"]


@contextmanager
def opened(place: Place, traffic: Traffic, notes: list[str]) -> Iterator[Source]:
    """The source that a user named; without any, of the job applied last, or else the newest pin."""
    engine = place.engine or "vllm"
    if place.env is not None:
        yield environment.of_environment(place.env, place.engine, notes)
        return
    if place.repo is not None and place.rev is None and Path(place.repo).expanduser().is_dir():
        yield origins.of_work_tree(engine, place.repo)
        return
    if place.repo is not None:
        if place.rev is None:
            raise UnknownRevisionError(
                f"which revision of {place.repo} is meant?",
                next="name a commit, tag or branch with --rev",
            )
        with origins.of_git(engine, place.repo, place.rev) as found:
            yield found
        return
    rev = place.rev or _default_rev(engine, notes)
    with ExitStack() as stack:
        yield _read_or_recalled(engine, rev, place, traffic, notes, stack)


def _read_or_recalled(
    engine: str, rev: str, place: Place, traffic: Traffic, notes: list[str], stack: ExitStack
) -> Source:
    """A release as it is read, or, where no index can be asked, as it was recorded."""
    try:
        return stack.enter_context(origins.of_rev(engine, rev, traffic, native=place.native))
    except (OfflineError, DownloadError) as error:
        known = recorded.load(engine)
        version = next((each for each in known.releases if lookup.same(each, rev)), None)
        if version is None:
            raise
        notes.append(f"{error.what.rstrip('.')}: these are recorded answers, without their places")
        return origins.of_record(engine, version)


def _default_rev(engine: str, notes: list[str]) -> str:
    try:
        asked = receipt.require(job.last(), "apply")["request"]
        if asked["engine"] == engine and any(
            lookup.same(pin.rev, asked["rev"]) for pin in pins.pinned(engine)
        ):
            notes.append(f"{asked['rev']} is the revision applied last; --rev names another")
            return str(asked["rev"])
    except DspatchError:
        pass
    pinned = pins.pinned(engine)
    if not pinned:
        raise UnknownRevisionError(
            f"which release of {engine} is meant?", next="name it, for example --rev v0.13.0"
        )
    notes.append(f"{pinned[-1].rev} is the newest pin; --rev names another release")
    return pinned[-1].rev
