"""From an engine and a revision to its pin: the user's own pins first, then those that ship."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from dspatch import paths
from dspatch.errors import DspatchError, UnknownRevisionError, UnpinnedRevisionError
from dspatch.pins import store
from dspatch.pins.engines import Engine, engine
from dspatch.pins.types import Pin

SHIPPED = Path(__file__).parent


def load(engine_name: str, rev: str) -> Pin:
    """The pin of a revision, written `v0.27.1` or `0.27.1`.

    Raises `UnknownEngineError`, `PinError`, `UnpinnedRevisionError` for one that an index has,
    and `UnknownRevisionError` for one that none has, or that cannot be asked about.
    """
    facts = engine(engine_name)
    known = pinned(engine_name)
    for pin in known:
        if same(pin.rev, rev):
            return pin
    raise unknown(facts, rev)


def pinned(engine_name: str) -> tuple[Pin, ...]:
    """All pins of an engine, oldest revision first; the user's own win, then a mirror's, over those that ship."""
    engine(engine_name)
    found: list[Pin] = []
    for file in _pin_files(engine_name):
        read = store.read(file, engine_name)
        found += [pin for pin in read if not any(same(pin.rev, known.rev) for known in found)]
    return tuple(sorted(found, key=lambda pin: store.version_key(pin.rev)))


def _pin_files(engine_name: str) -> Iterator[Path]:
    yield user_file(engine_name)
    if (mirror := paths.mirror()) is not None:
        yield mirror / "pins" / f"{engine_name}.toml"
    yield SHIPPED / f"{engine_name}.toml"


def user_file(engine_name: str) -> Path:
    """Where the user's pins of an engine are kept: in `DSPATCH_PINS`, or among the jobs."""
    return paths.own_pins() / f"{engine_name}.toml"


def nearest_release(engine_name: str, version: str) -> Pin | None:
    """The newest pin that is not newer than a version, for a commit between two releases."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        return None
    fitting = [pin for pin in pinned(engine_name) if _not_newer(pin, wanted)]
    return fitting[-1] if fitting else None


def same(rev: str, other: str) -> bool:
    """Whether two spellings name one revision: with and without `v`, `0.27` and `0.27.0`."""
    return _normal(rev) == _normal(other)


def released(facts: Engine) -> tuple[set[str], str]:
    """The versions that the indexes have, and why that may not be all of them."""
    from dspatch import index

    versions: set[str] = set()
    problems: list[str] = []
    for project in facts.projects:
        try:
            listing = index.listing(project)
        except DspatchError as error:  # a broken configuration must not hide the pins there are
            problems.append(error.what)
            continue
        versions |= {version for file in listing.files if (version := version_of(file.filename))}
        problems += listing.problems
    return versions, "; ".join(dict.fromkeys(problems))


def version_of(filename: str) -> str | None:
    """The version in the name of an sdist or a wheel, None for any other file."""
    try:
        if filename.endswith(".whl"):
            return str(parse_wheel_filename(filename)[1])
        return str(parse_sdist_filename(filename)[1])
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def _normal(rev: str) -> Version | str:
    try:
        return Version(rev)
    except InvalidVersion:
        return rev


def _not_newer(pin: Pin, wanted: Version) -> bool:
    version = _normal(pin.rev)
    return isinstance(version, Version) and version <= wanted


def unknown(facts: Engine, rev: str) -> DspatchError:
    """The error for a revision without a pin: released or not, or impossible to tell."""
    known = [pin.rev for pin in pinned(facts.name)]
    versions, problems = released(facts)
    have = f"pinned are {', '.join(known) or 'none'}"
    if any(same(version, rev) for version in versions):
        tag = f"v{rev.removeprefix('v')}"
        return UnpinnedRevisionError(
            f"{facts.name} {rev} has been released but has no pin.",
            why=have,
            next=f"dspatch pin add --engine {facts.name} --rev {tag}",
        )
    if problems:
        return UnknownRevisionError(
            f"{facts.name} {rev} has no pin, and whether it was released cannot be told.",
            why=f"{have}; not every index could be asked: {problems}",
            next="use a pinned revision, or try again with a network",
        )
    near = get_close_matches(rev.removeprefix("v"), sorted(versions), n=3, cutoff=0.5)
    return UnknownRevisionError(
        f"{facts.name} {rev} was never released.",
        why=f"{have}; nearest releases: {', '.join(f'v{each}' for each in near) or 'none'}",
        next=f"use --rev {known[-1]}" if known else "use a release",
    )
