"""One finding from its TOML file: what is wrong, for whom, how it is seen, and what helps."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from dspatch import tomlfile, traits
from dspatch.audit import conditions, confirmed, question, signature
from dspatch.audit.confirmed import Confirmed, Unshown
from dspatch.audit.signature import Signature
from dspatch.errors import PatchFormatError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import TomlFile

Severity = Literal["wrong", "crash", "slow", "missing", "misleading"]
Established = Literal["run", "read", "reported"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
FOLDER = PACKAGE / "audit" / "findings"
_CONDITIONS = ("families", "variants", "facts", "targets", "cards", "options")
_KEYS = {
    *("id", "title", "severity", "what", "fix", "workaround", "references", "bug-cases"),
    *("established", "date", "applies", "probe", "decides", "tested", "blocks"),
    *("confirmed", "unshown", "signature"),
}


@dataclass(frozen=True, kw_only=True)
class Applies:
    """Whom a finding concerns; an empty condition concerns all."""

    families: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A release on which the probe was seen to answer rightly; `native`: its sdist was read, too."""

    rev: str
    has: bool
    native: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a source may have wrong. Where `decides` does not hold, its probe decides nothing.

    One that `blocks` keeps a model from being served at all. `signatures` are how it shows in a log.
    """

    id: str
    engine: str
    title: str
    severity: Severity
    what: str
    fix: str | None
    workaround: str | None
    references: tuple[str, ...]
    bug_cases: tuple[str, ...]
    established: Established
    date: datetime.date
    applies: Applies
    probe: Mapping[str, Any] = field(repr=False)
    decides: Mapping[str, Any] | None = field(repr=False)
    tested: tuple[Tested, ...] = field(repr=False)
    confirmed: tuple[Confirmed, ...] = field(default=(), repr=False)
    unshown: tuple[Unshown, ...] = field(default=(), repr=False)
    blocks: bool = False
    signatures: tuple[Signature, ...] = field(default=(), repr=False)


def engines() -> tuple[str, ...]:
    """The engines that there are findings about."""
    return tuple(sorted(path.name for path in FOLDER.iterdir() if any(path.glob("*.toml"))))


def load_all(
    engine: str, known: Mapping[str, traits.Trait], folder: Path | None = None
) -> tuple[Finding, ...]:
    """The findings about an engine, the gravest first, then by id. Raises as `load` does."""
    found = [
        load(path, engine, known) for path in sorted(((folder or FOLDER) / engine).glob("*.toml"))
    ]
    return tuple(sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each.id)))


def load(path: Path, engine: str, known: Mapping[str, traits.Trait]) -> Finding:
    """Read one finding; raises `PatchFormatError` that names file, line and what was expected."""
    source = tomlfile.load(path, PatchFormatError)
    data = source.data
    source.check_keys(data, _KEYS)
    _check_questions(source, known)
    return Finding(
        id=_id(source, path, engine),
        engine=engine,
        title=title(source),
        severity=choice(source, "severity", SEVERITIES),
        what=" ".join(source.get(data, "what", str).split()),
        fix=_optional(source, "fix"),
        workaround=_optional(source, "workaround"),
        references=references(source),
        bug_cases=source.strings(data, "bug-cases"),
        established=choice(source, "established", get_args(Established)),
        date=source.get(data, "date", datetime.date),
        applies=_applies(source),
        probe=data["probe"],
        decides=data.get("decides"),
        tested=_tested(source),
        confirmed=confirmed.confirmed(source),
        unshown=confirmed.unshown(source),
        blocks=source.get(data, "blocks", bool, default=False),
        signatures=signature.signatures(source),
    )


def _id(source: TomlFile, path: Path, engine: str) -> str:
    found = source.get(source.data, "id", str)
    if found != path.stem or not found.startswith(f"{engine}-"):
        raise source.fail(
            f"`id` is {found!r}; expected the file's name, which begins with `{engine}-`", key="id"
        )
    return found


def title(source: TomlFile) -> str:
    """The title that a data file states, which must be one sentence. Raises what the file's errors are."""
    found = source.get(source.data, "title", str)
    if not found or "\n" in found or len(found) > 110 or found.endswith("."):
        raise source.fail(
            "`title` must be one sentence of at most 110 characters, without a full stop",
            key="title",
        )
    return found


def choice(source: TomlFile, key: str, choices: tuple[Any, ...], default: str | None = None) -> Any:
    """The value of a key that must be one of some. Raises what the file's errors are."""
    value = source.get(source.data, key, str, default=default)
    if value not in choices:
        raise source.fail(f"`{key}` is {value!r}; expected one of {', '.join(choices)}", key=key)
    return value


def _optional(source: TomlFile, key: str) -> str | None:
    return source.get(source.data, key, str) if key in source.data else None


def references(source: TomlFile) -> tuple[str, ...]:
    """The links that a data file states. Raises what the file's errors are."""
    links = source.strings(source.data, "references")
    for link in links:
        if not re.fullmatch(r"https://\S+", link):
            raise source.fail(f"`{link}` is no https link", key="references")
    return links


def _applies(source: TomlFile) -> Applies:
    table = source.get(source.data, "applies", dict, default={})
    source.check_keys(table, _CONDITIONS, within="applies")
    applies = Applies(**{key: source.strings(table, key, within="applies") for key in _CONDITIONS})
    for key, fault in conditions.faults(applies.facts, applies.targets, applies.cards):
        raise source.fail(fault, key=key, within="applies")
    return applies


def _check_questions(source: TomlFile, known: Mapping[str, traits.Trait]) -> None:
    source.get(source.data, "probe", dict)
    for key in ("probe", "decides"):
        for fault in question.faults(source.data[key], known) if key in source.data else ():
            raise source.fail(fault, within=key)


def _tested(source: TomlFile) -> tuple[Tested, ...]:
    if not source.get(source.data, "tested", list):
        raise source.fail(
            "`tested` must name releases that have it and that have not", key="tested"
        )
    rows = source.tables(source.data, "tested", ("rev", "has", "native"))
    return tuple(
        Tested(
            rev=source.get(row, "rev", str, within="tested"),
            has=source.get(row, "has", bool, within="tested"),
            native=bool(row.get("native", False)),
        )
        for row in rows
    )
