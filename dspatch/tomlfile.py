"""Read data files in TOML, with errors that name file, line and what was expected."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dspatch.errors import DspatchError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TomlFile:
    """A parsed data file that remembers where its keys stand."""

    path: Path
    text: str
    data: dict[str, Any]
    error: type[DspatchError]

    def fail(self, expected: str, *, key: str = "", within: str = "") -> DspatchError:
        """The error to raise for a key: file, line, and what was expected there."""
        return self.error(
            f"{self.path}, line {self.line_of(key, within)}: {expected}",
            next="mend the file and run the command again",
        )

    def line_of(self, key: str, within: str = "") -> int:
        """The line where a key of a table (`within`: its header's name) stands; 1 when nowhere."""
        lines = self.text.splitlines()
        start = 0
        if within:
            header = re.compile(rf"^\s*\[+\s*{re.escape(within)}\s*\]+")
            start = next((n for n, line in enumerate(lines) if header.match(line)), 0)
        if not key:
            return start + 1
        wanted = re.compile(rf"^\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*(=|\])")
        return next(
            (n + 1 for n, line in enumerate(lines[start:], start) if wanted.match(line)), start + 1
        )

    def check_keys(
        self, table: Mapping[str, Any], allowed: Iterable[str], *, within: str = ""
    ) -> None:
        """Refuse keys that nothing reads: a misspelt key must not pass in silence."""
        allowed = sorted(allowed)
        for key in table:
            if key not in allowed:
                raise self.fail(
                    f"unknown key `{key}`; expected one of {', '.join(allowed)}",
                    key=key,
                    within=within,
                )

    def get(
        self,
        table: Mapping[str, Any],
        key: str,
        kind: type[T],
        *,
        within: str = "",
        default: T | None = None,
    ) -> T:
        """The value of a key, which must have the right type; without a default it must be there."""
        if key not in table:
            if default is None:
                raise self.fail(f"`{key}` ({_name(kind)}) is missing", within=within)
            return default
        value = table[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fail(
                f"`{key}` must be a {_name(kind)}, not {type(value).__name__}",
                key=key,
                within=within,
            )
        return value

    def tables(
        self, table: Mapping[str, Any], key: str, allowed: Iterable[str]
    ) -> list[dict[str, Any]]:
        """The tables under `[[key]]`, with no other keys than those; empty when there are none."""
        rows: list[dict[str, Any]] = self.get(table, key, list, default=[])
        if not all(isinstance(row, dict) for row in rows):
            raise self.fail(f"`{key}` must be tables, written [[{key}]]", key=key)
        for row in rows:
            self.check_keys(row, allowed, within=key)
        return rows

    def strings(
        self, table: Mapping[str, Any], key: str, *, within: str = "", default: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """A list of strings; empty when the key is not there."""
        values = self.get(table, key, list, within=within, default=list(default))
        if not all(isinstance(value, str) for value in values):
            raise self.fail(f"`{key}` must be a list of strings", key=key, within=within)
        return tuple(values)


def load(path: Path, error: type[DspatchError]) -> TomlFile:
    """Parse a data file; what is wrong with it is raised as `error`, with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path} does not exist.") from None
    except UnicodeDecodeError as bad:
        raise error(f"{path} is not UTF-8 text.", why=str(bad)) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as bad:
        raise error(
            f"{path} is not valid TOML.",
            why=str(bad),
            next="mend the file and run the command again",
        ) from None
    return TomlFile(path=path, text=text, data=data, error=error)


def _name(kind: type) -> str:
    return {
        str: "string",
        list: "list",
        dict: "table",
        int: "whole number",
        bool: "true or false",
    }.get(kind, kind.__name__)
