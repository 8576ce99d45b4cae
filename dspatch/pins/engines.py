"""The engines that can be pinned, from `engines.toml`: projects, paths, standing differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_args

from packaging.version import InvalidVersion, Version

from dspatch import tomlfile
from dspatch.errors import PinError, UnknownEngineError
from dspatch.pins.types import Accepted, Target

TABLE = Path(__file__).with_name("engines.toml")


@dataclass(frozen=True, kw_only=True)
class StandingRule:
    """A difference that is accepted in every revision, for the base wheels of some targets."""

    targets: tuple[str, ...]
    accepted: Accepted


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a pin of an engine is made from; `bases` maps a target to a project.

    `libraries` maps a target to the system libraries that its compiled members load, each with the
    command that installs it. `oldest` and `newest` bound the releases that patches are tried on.
    `images` maps a target to the container image that upstream publishes.
    """

    name: str
    package: str
    sdist: str
    repository: str
    version_file: str
    torch: str
    bases: Mapping[str, str]
    rules: tuple[StandingRule, ...]
    libraries: Mapping[str, Mapping[str, str]]
    oldest: str | None
    newest: str | None
    images: Mapping[str, str]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets for which somebody publishes base wheels."""
        return tuple(target for target in get_args(Target) if target in self.bases)

    def accepted(self, target: Target) -> tuple[Accepted, ...]:
        """The differences that need no word from the user in a base wheel of that target."""
        return tuple(rule.accepted for rule in self.rules if target in rule.targets)


def engine(name: str) -> Engine:
    """The engine of that name; raises `UnknownEngineError` with the nearest one."""
    known = engines()
    if name in known:
        return known[name]
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    raise UnknownEngineError(
        f"dspatch does not patch an engine named {name!r}.",
        why=f"it knows {', '.join(known)}",
        next=f"did you mean --engine {near[0]}?" if near else f"use --engine {next(iter(known))}",
    )


@cache
def engines() -> Mapping[str, Engine]:
    """All engines by name, in the order of the table."""
    source = tomlfile.load(TABLE, PinError)
    return {name: _engine(source, name, table) for name, table in source.data.items()}


def _engine(source: tomlfile.TomlFile, name: str, table: dict[str, Any]) -> Engine:
    text = {
        key.replace("-", "_"): source.get(table, key, str, within=name)
        for key in ("package", "sdist", "repository", "version-file", "torch")
    }
    bases = source.get(table, "base", dict, within=name)
    rules = source.get(table, "accepted", list, within=name, default=[])
    return Engine(
        name=name,
        bases=bases,
        rules=tuple(_rule(source, name, bases, row) for row in rules),
        libraries=source.get(table, "libraries", dict, within=name, default={}),
        oldest=_bound(source, table, name, "oldest"),
        newest=_bound(source, table, name, "newest"),
        images=source.get(table, "images", dict, within=name, default={}),
        **text,
    )


def _bound(source: tomlfile.TomlFile, table: dict[str, Any], name: str, key: str) -> str | None:
    if key not in table:
        return None
    value = source.get(table, key, str, within=name)
    try:
        Version(value)
    except InvalidVersion:
        raise source.fail(f"`{key}` is {value!r}; expected a version", key=key) from None
    return value


def _rule(
    source: tomlfile.TomlFile, name: str, bases: Mapping[str, str], row: dict[str, Any]
) -> StandingRule:
    within = f"{name}.accepted"
    return StandingRule(
        targets=source.strings(row, "targets", within=within, default=tuple(bases)),
        accepted=Accepted(
            path=source.get(row, "path", str, within=within),
            reason=source.get(row, "reason", str, within=within),
        ),
    )
