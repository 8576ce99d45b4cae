"""Read a table of engines: projects, paths, standing differences, with errors that name file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from packaging.version import InvalidVersion, Version

from dspatch import tomlfile
from dspatch.errors import PinError
from dspatch.pins.types import Accepted, Target

# An engine's pins lie in a file of its name, beside the table.
_NAME = re.compile(r"(?!engines$)[a-z][a-z0-9-]*")
_KEYS = (
    "package", "sdist", "repository", "version-file", "torch", "base", "accepted", "libraries",
    "oldest", "newest", "images", "module",
)  # fmt: skip


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
    `images` maps a target to the container image that upstream publishes. `module` is the user's
    own Python that runs the engine for `conformance`.
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
    module: Path | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets for which somebody publishes base wheels."""
        return tuple(target for target in get_args(Target) if target in self.bases)

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that the engine is published as, each once: its source, then its base wheels."""
        return tuple(dict.fromkeys([self.sdist, *self.bases.values()]))

    def accepted(self, target: Target) -> tuple[Accepted, ...]:
        """The differences that need no word from the user in a base wheel of that target."""
        return tuple(rule.accepted for rule in self.rules if target in rule.targets)


def read(path: Path) -> dict[str, Engine]:
    """The engines of a table, in its order. Raises `PinError`."""
    source = tomlfile.load(path, PinError)
    for name, table in source.data.items():
        if not isinstance(table, dict) or not _NAME.fullmatch(name):
            what = "a table named with small letters, digits and hyphens, other than `engines`"
            raise source.fail(f"`{name}` must be {what}", key=name)
        source.check_keys(table, _KEYS, within=name)
    return {name: _engine(source, name, table) for name, table in source.data.items()}


def _engine(source: tomlfile.TomlFile, name: str, table: dict[str, Any]) -> Engine:
    text = {
        key.replace("-", "_"): source.get(table, key, str, within=name)
        for key in ("package", "sdist", "repository", "version-file")
    }
    bases = _bases(source, name, table)
    rules = source.get(table, "accepted", list, within=name, default=[])
    return Engine(
        name=name,
        bases=bases,
        rules=tuple(_rule(source, name, bases, row) for row in rules),
        libraries=source.get(table, "libraries", dict, within=name, default={}),
        oldest=_bound(source, table, name, "oldest"),
        newest=_bound(source, table, name, "newest"),
        images=source.get(table, "images", dict, within=name, default={}),
        torch=source.get(table, "torch", str, within=name, default="torch"),
        module=_module(source, name, table),
        **text,
    )


def _bases(source: tomlfile.TomlFile, name: str, table: dict[str, Any]) -> dict[str, str]:
    bases: dict[str, str] = source.get(table, "base", dict, within=name)
    known = get_args(Target)
    if not bases or not all(key in known and isinstance(bases[key], str) for key in bases):
        what = f"`base` must name a project for one or more of {', '.join(known)}"
        raise source.fail(what, key="base", within=name)
    return bases


def _module(source: tomlfile.TomlFile, name: str, table: dict[str, Any]) -> Path | None:
    if "module" not in table:
        return None
    path = source.path.parent / source.get(table, "module", str, within=name)
    if path.suffix != ".py" or not path.is_file():
        what = f"`module` must be a Python file beside {source.path.name}; {path} is none"
        raise source.fail(what, key="module", within=name)
    return path


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
