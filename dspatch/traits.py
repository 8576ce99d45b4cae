"""Facts read from a checkout's own source by AST: which API it has, which faults; never a version number."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch import astfind, tomlfile
from dspatch.errors import PatchFormatError

Read = Callable[[str], bytes | None]
Value = bool | str

PROBE_KEYS = frozenset({"file", "symbol", "contains", "parameter", "regex"})
COMBINATIONS = frozenset({"any", "all", "not", "trait"})


@dataclass(frozen=True, kw_only=True)
class Trait:
    """A named question to a checkout, as `traits.toml` words it."""

    name: str
    what: str
    question: Mapping[str, Any]


class Traits(Mapping[str, Value]):
    """The answers of one checkout, each read when it is first asked for.

    A boolean trait is true or false. A value trait (`first_of`) is the value of the first probe that
    holds; where none holds the trait has no value and asking raises `KeyError`.
    """

    def __init__(self, definitions: Mapping[str, Trait], read: Read) -> None:
        self.definitions = definitions
        self._read = read
        self._known: dict[str, Value | None] = {}

    def __getitem__(self, name: str) -> Value:
        value = self.get_or_none(name)
        if value is None:
            raise KeyError(name)
        return value

    def get_or_none(self, name: str) -> Value | None:
        """The answer, `None` for a value trait that nothing in the checkout gives a value."""
        if name not in self._known:
            self._known[name] = self._answer(self.definitions[name].question)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.definitions if self.get_or_none(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _answer(self, question: Mapping[str, Any]) -> Value | None:
        if "first_of" in question:
            return next((str(q["value"]) for q in question["first_of"] if self._holds(q)), None)
        return self._holds(question)

    def _holds(self, question: Mapping[str, Any]) -> bool:
        results = []
        if "trait" in question:
            results.append(bool(self.get_or_none(question["trait"])))
        if "any" in question:
            results.append(any(self._holds(item) for item in question["any"]))
        if "all" in question:
            results.append(all(self._holds(item) for item in question["all"]))
        if "not" in question:
            results.append(not self._holds(question["not"]))
        if "file" in question:
            results.append(_probe(question, self._read(question["file"])))
        return all(results)


def inner(question: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The questions that one is directly made of, but for those of traits that it names."""
    for key in ("any", "all", "first_of"):
        yield from question.get(key, ())
    if "not" in question:
        yield question["not"]


def rests_on(questions: Iterable[Mapping[str, Any]], known: Mapping[str, Trait]) -> set[str]:
    """The traits that questions name, and those that these rest on."""
    waiting = list(questions)
    found: set[str] = set()
    while waiting:
        question = waiting.pop()
        waiting += inner(question)
        name = question.get("trait")
        if name is not None and name not in found:
            found.add(name)
            waiting.append(known[name].question)
    return found


def load(path: Path) -> dict[str, Trait]:
    """Read `traits.toml`; raises `PatchFormatError` with file and line."""
    source = tomlfile.load(path, PatchFormatError)
    traits = {}
    for name, table in source.data.items():
        if not isinstance(table, dict) or not name.isidentifier():
            raise source.fail(f"`{name}` must be a table with an identifier as its name", key=name)
        what = source.get(table, "what", str, within=name)
        question = {key: value for key, value in table.items() if key != "what"}
        _check(source, name, question, source.data)
        traits[name] = Trait(name=name, what=what, question=question)
    return traits


def _check(
    source: tomlfile.TomlFile,
    name: str,
    question: Any,
    names: Mapping[str, Any],
    value: bool = False,
) -> None:
    """Refuse a question that no probe could answer."""
    if not isinstance(question, dict) or not question:
        raise source.fail(f"trait `{name}`: a probe must be a table with a `file`", within=name)
    if "first_of" in question:
        source.check_keys(question, ["first_of"], within=name)
        for item in question["first_of"]:
            if not isinstance(item, dict) or "value" not in item:
                raise source.fail(
                    f"trait `{name}`: every item of first_of needs a `value`", within=name
                )
            _check(source, name, {k: v for k, v in item.items() if k != "value"}, names, value=True)
        return
    source.check_keys(question, PROBE_KEYS | COMBINATIONS, within=name)
    for item in [*question.get("any", []), *question.get("all", [])]:
        _check(source, name, item, names)
    if "not" in question:
        _check(source, name, question["not"], names)
    if question.get("trait", next(iter(names))) not in names:
        raise source.fail(
            f"trait `{name}` refers to `{question['trait']}`, which is no trait", within=name
        )
    if PROBE_KEYS & question.keys() and "file" not in question:
        raise source.fail(f"trait `{name}`: a probe needs a `file`", within=name)
    _check_code(source, name, question)


def _check_code(source: tomlfile.TomlFile, name: str, question: Mapping[str, Any]) -> None:
    try:
        if "contains" in question:
            astfind.pattern(question["contains"])
        if "regex" in question:
            re.compile(question["regex"])
    except (SyntaxError, re.error) as error:
        raise source.fail(f"trait `{name}`: {error}", within=name) from None


def _probe(question: Mapping[str, Any], data: bytes | None) -> bool:
    """Whether one file answers a probe with yes; a file that is not there answers no."""
    if data is None:
        return False
    if "regex" in question and not re.search(
        question["regex"], data.decode(errors="replace"), re.M
    ):
        return False
    if not question.keys() & {"symbol", "contains", "parameter"}:
        return True
    scope: ast.AST | None = _module(data)
    if "symbol" in question and isinstance(scope, ast.Module):
        scope = astfind.symbol(scope, question["symbol"])
    if scope is None:
        return False
    if "parameter" in question and question["parameter"] not in astfind.parameters(scope):
        return False
    return "contains" not in question or bool(
        astfind.find(scope, astfind.pattern(question["contains"]))
    )


def _module(data: bytes) -> ast.Module | None:
    try:
        return astfind.parsed(data)
    except (SyntaxError, ValueError):
        return None
