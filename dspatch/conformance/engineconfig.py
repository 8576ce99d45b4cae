"""A configuration that a conversion wrote, held against the fields that the engine's C++ reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.version import Version

from dspatch import tomlfile
from dspatch.errors import ConformanceError
from dspatch.paths import PACKAGE

PARTS = {"model": "model_config", "attention": "attention_config"}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a `section`; `when` are the types of RoPE that it is read for, all where there is none."""

    section: str
    name: str
    type: str
    required: bool
    when: tuple[str, ...] = ()


# What YAML of each type is read as the C++ type; YAML writes a whole float without a point nowhere.
TYPES: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "bool": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "rope": lambda value: isinstance(value, Mapping),
    "int[]": lambda value: _all(value, "int"),
    "string[]": lambda value: _all(value, "string"),
}


def _all(value: Any, kind: str) -> bool:
    return isinstance(value, list) and all(TYPES[kind](each) for each in value)


@cache
def _tables() -> Mapping[str, Any]:
    path = PACKAGE / "engines" / "turbomind_fields.toml"
    return tomlfile.load(path, ConformanceError).data


def fields(version: str) -> list[Field]:
    """What the C++ of a release reads; nothing of a release whose C++ nobody read."""
    own = Version(version)
    return [
        Field(
            section=section,
            name=name,
            type=row["type"],
            required=row["required"],
            when=tuple(row.get("when", ())),
        )
        for section, rows in _tables()["fields"].items()
        for name, row in rows.items()
        if Version(row["from"]) <= own <= Version(row["to"]) or own.base_version == row["to"]
    ]


def wrong(config: Mapping[str, Any], version: str) -> list[str]:
    """Every field that the engine would not find, or would find in another type."""
    return [said for each in fields(version) if (said := _wrong(config, each))]


def unread(config: Mapping[str, Any], version: str) -> list[str]:
    """Fields that were written and that the engine does not read: numbers that change nothing."""
    known = {(each.section, each.name) for each in fields(version)}
    return sorted(
        f"{section}.{name}" for section, name in _written(config) if (section, name) not in known
    )


def _written(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section, part in PARTS.items():
        yield from ((section, name) for name in config[part])
    yield from (("rope", name) for name in _section(config, "rope") or {})


def _section(config: Mapping[str, Any], section: str) -> Mapping[str, Any] | None:
    if section in PARTS:
        return config.get(PARTS[section])
    found: Mapping[str, Any] | None = config["attention_config"].get("rope_param")
    return found


def _wrong(config: Mapping[str, Any], known: Field) -> str:
    section = _section(config, known.section)
    if section is None or (known.when and section.get("type") not in known.when):
        return ""
    value, place = section.get(known.name), f"{known.section}.{known.name}"
    if value is None:
        return f"{place} is not there, and the engine needs it" if known.required else ""
    return (
        ""
        if TYPES[known.type](value)
        else f"{place} is {value!r}, and the engine reads {known.type}"
    )
