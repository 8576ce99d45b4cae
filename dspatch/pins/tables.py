"""Arrays of tables in a data file, read with errors that name file, line and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dspatch import tomlfile
from dspatch.errors import PinError

T = TypeVar("T")
EXPECTED: dict[type, str] = {str: "a string", int: "a whole number", list: "a list"}


def read(path: Path) -> Table:
    """The whole of a data file as one table; raises `PinError`."""
    file = tomlfile.load(path, PinError)
    return Table(file=file, line=1, data=file.data, name="the file")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that knows the lines it takes, counted from 1, up to and without `end`."""

    file: tomlfile.TomlFile
    line: int
    data: Mapping[str, Any]
    name: str
    end: int = 1 << 30

    def fail(self, expected: str, key: str = "") -> PinError:
        where = f"{self.file.path}, line {self._line_of(key)}"
        return PinError(f"{where}: {expected}", next="write the pin anew with `dspatch pin add`")

    def get(self, key: str, kind: type[T]) -> T:
        if key not in self.data:
            raise self.fail(f"`{key}` is missing in {self.name}; expected {EXPECTED[kind]}")
        return self._checked(key, kind)

    def maybe(self, key: str) -> str | None:
        return self._checked(key, str) if key in self.data else None

    def matching(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self.get(key, str)
        if not pattern.fullmatch(value):
            raise self.fail(f"`{key}` is {value!r}; expected {expected}", key)
        return value

    def one_of(self, key: str, allowed: tuple[str, ...]) -> Any:
        value = self.get(key, str)
        if value not in allowed:
            raise self.fail(f"`{key}` is {value!r}; expected one of {', '.join(allowed)}", key)
        return value

    def only(self, allowed: set[str]) -> None:
        for key in self.data:
            if key not in allowed:
                expected = ", ".join(sorted(allowed))
                raise self.fail(f"unknown key `{key}`; expected one of {expected}", key)

    def tables(self, key: str) -> Iterator[Table]:
        """The tables of an array, each with the lines that are its own."""
        rows = self.data.get(key, [])
        prefix = self.name.strip("[]") + "." if self.name.startswith("[[") else ""
        name = f"[[{prefix}{key}]]"
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.fail(f"`{key}` must be tables headed {name}", key)
        lines = [number for number in self._lines() if self._text(number).strip() == name]
        starts = lines if len(lines) == len(rows) else [self.line] * len(rows)
        ends = [*starts[1:], self.end][: len(rows)]
        for row, start, end in zip(rows, starts, ends, strict=True):
            yield Table(file=self.file, line=start, end=max(end, start + 1), data=row, name=name)

    def _checked(self, key: str, kind: type[T]) -> T:
        value = self.data[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(f"`{key}` is {value!r}; expected {EXPECTED[kind]}", key)
        return value

    def _line_of(self, key: str) -> int:
        wanted = re.compile(rf"\s*(\[+\s*)?{re.escape(key)}\s*[=.\]]") if key else None
        found = (number for number in self._lines() if wanted and wanted.match(self._text(number)))
        return next(found, self.line)

    def _lines(self) -> range:
        return range(self.line, min(self.end, len(self.file.text.split("\n")) + 1))

    def _text(self, number: int) -> str:
        return self.file.text.split("\n")[number - 1]
