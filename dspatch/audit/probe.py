"""One question asked of a source by its syntax tree: yes, no, or unknown, and never clean by default."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from dspatch import astfind, syntax
from dspatch.audit import answer
from dspatch.audit.answer import Answer, Evidence
from dspatch.traits import Trait, inner, rests_on

Traits = Mapping[str, Trait]
BEYOND = "lies beyond what was read"


class Asked(Protocol):
    """What a question is asked of."""

    @property
    def version(self) -> str | None:
        """The release that it is, where that is known."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a path, `None` when it is not there; raises `OSError` when it cannot tell."""

    def beyond(self, path: str) -> bool:
        """Whether sources of its kind cannot hold a path, so that its absence says nothing."""


def ask(question: Mapping[str, Any], source: Asked, traits: Traits) -> Answer:
    """Put one question, with all it is made of, to a source. Never raises for what the source holds."""
    return answer.every(list(_parts(question, source, traits)))


def files(question: Mapping[str, Any], traits: Traits) -> Iterator[str]:
    """Every file that a question may look at."""
    waiting = [question, *(traits[name].question for name in rests_on([question], traits))]
    while waiting:
        each = waiting.pop()
        waiting += inner(each)
        if "file" in each:
            given = each["file"]
            yield from [given] if isinstance(given, str) else given


def _parts(question: Mapping[str, Any], source: Asked, traits: Traits) -> Iterator[Answer]:
    if "trait" in question:
        yield ask(traits[question["trait"]].question, source, traits)
    for key in ("any", "first_of"):
        if key in question:
            yield answer.some([ask(each, source, traits) for each in question[key]])
    if "all" in question:
        yield answer.every([ask(each, source, traits) for each in question["all"]])
    if "not" in question:
        yield answer.negation(ask(question["not"], source, traits))
    if "version" in question:
        yield _version(question["version"], source)
    if "file" in question:
        yield _file(question, source)


def _version(wanted: str, source: Asked) -> Answer:
    try:
        found = Version(source.version or "")
    except InvalidVersion:
        return answer.unknown("which release it is cannot be told")
    place = Evidence(file="", text=f"version {found}")
    holds = SpecifierSet(wanted).contains(found, prereleases=True)
    return answer.yes(place) if holds else answer.no(place)


def _file(question: Mapping[str, Any], source: Asked) -> Answer:
    """The answer of one file, the first that is there where several are named."""
    given = question["file"]
    paths = [given] if isinstance(given, str) else list(given)
    for path in paths:
        try:
            data = source.read(path)
        except OSError as error:
            return answer.unknown(f"{path} cannot be read: {error.strerror or error}")
        if data is not None:
            return _content(question, path, data)
        if source.beyond(path):
            return answer.unknown(f"{path} {BEYOND}")
    return answer.no(*(Evidence(file=path, text="is not there") for path in paths))


def _content(question: Mapping[str, Any], path: str, data: bytes) -> Answer:
    answers = [answer.yes(Evidence(file=path))]
    if "sha256" in question:
        answers.append(_hash(question["sha256"], path, data))
    for key, wanted in (("regex", True), ("no-regex", False)):
        if key in question:
            answers.append(_regex(question[key], path, data, wanted))
    if _TREE_KEYS & question.keys():
        answers.append(_tree(question, path, data))
    joined = answer.every(answers)
    # The file alone is evidence only where nothing in it was asked for.
    told = tuple(each for each in joined.evidence if each.line or each.text)
    return Answer(state=joined.state, evidence=told or joined.evidence, why=joined.why)


def _hash(wanted: str, path: str, data: bytes) -> Answer:
    found = hashlib.sha256(data).hexdigest()
    place = Evidence(file=path, text=f"sha256 {found[:12]}")
    return answer.yes(place) if found == wanted else answer.no(place)


def _regex(wanted: str, path: str, data: bytes, holds: bool) -> Answer:
    text = data.decode(errors="replace")
    found = re.search(wanted, text, re.M)
    if found is None:
        place = Evidence(file=path, text=f"nothing matches /{wanted}/")
    else:
        line = text.count("\n", 0, found.start()) + 1
        place = Evidence(file=path, line=line, text=_short(text.splitlines()[line - 1]))
    return answer.yes(place) if (found is not None) == holds else answer.no(place)


def _tree(question: Mapping[str, Any], path: str, data: bytes) -> Answer:
    module = _module(data)
    if module is None:
        return answer.unknown(f"{path} is no Python that can be parsed here")
    name = question.get("symbol", "")
    scope = astfind.symbol(module, name) if name else module
    if scope is None:
        return answer.no(Evidence(file=path, text=f"has no `{name}`"))
    here = Evidence(file=path, line=getattr(scope, "lineno", 0), symbol=name)
    asked = [
        test(question[key], scope, here, data) for key, test in _TESTS.items() if key in question
    ]
    return answer.every(asked or [answer.yes(here)])


Test = Callable[[str, ast.AST, Evidence, bytes], Answer]


def _opposite(test: Test) -> Test:
    return lambda wanted, scope, here, data: answer.negation(test(wanted, scope, here, data))


def _contains(wanted: str, scope: ast.AST, here: Evidence, data: bytes) -> Answer:
    pattern = astfind.pattern(wanted)
    found = astfind.find(scope, pattern)
    if not found:
        return answer.no(_at(here, here.line, f"has no `{_short(wanted)}`"))
    line = found[0].nodes[0].lineno
    return answer.yes(_at(here, line, _short(data.decode(errors="replace").splitlines()[line - 1])))


def _has(wanted: str, scope: ast.AST, here: Evidence, data: bytes) -> Answer:
    node: ast.AST | None = scope
    for part in wanted.split("."):
        members = astfind.members(node) if node is not None else ()
        node = next((member for name, member in members if name == part), None)
    if node is None:
        return answer.no(_at(here, here.line, f"has no `{wanted}`"))
    return answer.yes(_at(here, getattr(node, "lineno", 0), f"has `{wanted}`"))


def _parameter(wanted: str, scope: ast.AST, here: Evidence, data: bytes) -> Answer:
    if wanted in astfind.parameters(scope):
        return answer.yes(_at(here, here.line, f"takes `{wanted}`"))
    return answer.no(_at(here, here.line, f"takes no `{wanted}`"))


def _entry(wanted: str, scope: ast.AST, here: Evidence, data: bytes) -> Answer:
    key, _, value = wanted.partition("=")
    for found, node in _entries(scope):
        if found == key.strip() and (not value or _equal(value, node)):
            return answer.yes(_at(here, node.lineno, f"lists `{wanted}`"))
    return answer.no(_at(here, here.line, f"lists no `{wanted}`"))


def _entries(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The keys of a dict, or the strings of a list, tuple or set, wherever below the scope."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), value
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            for item in node.elts:
                if isinstance(item, ast.Constant):
                    yield str(item.value), item


def _equal(wanted: str, node: ast.expr) -> bool:
    expression = astfind.pattern(wanted.strip()).expression
    return expression is not None and astfind.equal(expression, node)


def _at(here: Evidence, line: int, text: str) -> Evidence:
    return Evidence(file=here.file, line=line, symbol=here.symbol, text=text)


_TESTS: Mapping[str, Test] = {
    "contains": _contains,
    "lacks": _opposite(_contains),
    "absent": _opposite(_has),
    "parameter": _parameter,
    "no-parameter": _opposite(_parameter),
    "entry": _entry,
    "no-entry": _opposite(_entry),
}
_TREE_KEYS = frozenset({"symbol", *_TESTS})


@lru_cache(maxsize=64)
def _module(data: bytes) -> ast.Module | None:
    try:
        return syntax.parse(data)
    except syntax.UNREADABLE:
        return None


def _short(text: str, width: int = 88) -> str:
    words = " ".join(text.split())
    return words if len(words) <= width else f"{words[: width - 1]}…"
