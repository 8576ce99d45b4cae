"""A module of an engine, parsed no further than the names that are asked of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dspatch import syntax
from dspatch.carry.uses.bindings import Binding, bindings
from dspatch.carry.uses.skeleton import skeleton

Read = Callable[[str], bytes | None]

# A top-level statement that binds one name and is parsed only when that name is asked for. Its
# decorators come with it.
_DEFINITION = re.compile(rb"^(?:class|def|async def)[ \t]+(\w+)", re.M)
_NEXT = re.compile(rb"^(?![ \t\r\n#)\]}])", re.M)


@dataclass(kw_only=True)
class ModuleSource:
    """One module: its dotted name, the path it was read from, and its top-level names."""

    name: str
    path: str
    source: bytes
    _chunks: dict[str, list[tuple[int, int]]] | None = None
    _rest: dict[str, Binding] | None = None
    _known: dict[str, Binding | None] = field(default_factory=dict)
    # Classes parsed without the bodies of their methods: where they stand, and whole once asked for.
    _shortened: dict[int, tuple[int, int]] = field(default_factory=dict)
    _wholes: dict[int, ast.ClassDef] = field(default_factory=dict)

    @property
    def is_package(self) -> bool:
        """Whether the module is a package's `__init__`."""
        return self.path.endswith("/__init__.py")

    def binding(self, name: str) -> Binding | None:
        """What a top-level name is bound to, `None` when the module does not bind it."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def shadowed(self, name: str) -> Binding | None:
        """What a name stood for before a class or function of the module took it, `None` for nothing."""
        self._index()
        return (self._rest or {}).get(name) if (self._chunks or {}).get(name) else None

    def names(self) -> list[str]:
        """Every top-level name."""
        self._index()
        return sorted({*(self._chunks or {}), *(self._rest or {})})

    def stars(self) -> list[str]:
        """The modules whose names a `import *` brings in, as written."""
        self._index()
        return [name.removeprefix("*") for name in self._rest or {} if name.startswith("*")]

    def _find(self, name: str) -> Binding | None:
        self._index()
        assert self._chunks is not None
        assert self._rest is not None
        spans = self._chunks.get(name)
        if not spans:
            return self._rest.get(name)
        try:
            found = Binding(node=self._definition(*spans[-1]))
        except (SyntaxError, ValueError):  # what looked like a definition stands in a string
            self._chunks, self._rest = {}, _whole(self.source)
            return self._rest.get(name)
        other = self._rest.get(name)
        return other if other is not None and _line(other) > _line(found) else found

    def _definition(self, start: int, end: int) -> ast.stmt:
        short = skeleton(self.source[start:end])
        if short is not None:
            try:
                node = _parsed(self.source, start, short).body[-1]
                self._shortened[id(node)] = (start, end)
            except (SyntaxError, ValueError):
                pass
            else:
                return node
        return _parsed(self.source, start, self.source[start:end]).body[-1]

    def whole(self, node: ast.ClassDef) -> ast.ClassDef:
        """A class of this module with the bodies of its methods."""
        key = id(node)
        if key not in self._shortened:
            return node
        if key not in self._wholes:
            start, end = self._shortened[key]
            found = _parsed(self.source, start, self.source[start:end]).body[-1]
            assert isinstance(found, ast.ClassDef)
            self._wholes[key] = found
        return self._wholes[key]

    def _index(self) -> None:
        if self._chunks is not None:
            return
        chunks = list(_definitions(self.source))
        try:
            body = syntax.parse(_blanked(self.source, chunks)).body
            rest = bindings(body)
        except (SyntaxError, ValueError):
            body, rest = [], None
        if rest is None or _in_strings(self.source, chunks, body):
            chunks, rest = [], _whole(self.source)
        self._chunks = {}
        self._rest = rest
        for name, start, end in chunks:
            self._chunks.setdefault(name, []).append((start, end))


def _whole(source: bytes) -> dict[str, Binding]:
    try:
        return bindings(syntax.parse(source).body)
    except (SyntaxError, ValueError):
        return {}


def _line(binding: Binding) -> int:
    return getattr(binding.node, "lineno", 0)


def _in_strings(
    source: bytes, chunks: Sequence[tuple[str, int, int]], body: Sequence[ast.stmt]
) -> bool:
    """Whether some of the definitions stand within another statement, which has to be a string."""
    long = [(s.lineno, s.end_lineno or s.lineno) for s in body if s.end_lineno != s.lineno]
    at, line = 0, 1
    for _, start, _ in chunks if long else ():
        at, line = start, line + source.count(b"\n", at, start)
        if any(first < line <= last for first, last in long):
            return True
    return False


def _parsed(source: bytes, start: int, part: bytes) -> ast.Module:
    # Empty lines in front give every node its number in the file.
    return syntax.parse(b"\n" * source.count(b"\n", 0, start) + part)


def _definitions(source: bytes) -> Iterator[tuple[str, int, int]]:
    """Names and spans of the top-level classes and functions, their decorators included."""
    at = 0
    for match in _DEFINITION.finditer(source):
        start, end = match.start(), _next_start(source, match.end())
        while (above := source.rfind(b"\n@", at, start)) >= 0:
            if _next_start(source, above + 2) != start:
                break
            start = above + 1
        yield match.group(1).decode(), start, end
        at = end - 1


def _next_start(source: bytes, after: int) -> int:
    """Where the next statement begins that is not indented."""
    found = _NEXT.search(source, after)
    return len(source) if found is None else found.start()


def _blanked(source: bytes, chunks: Sequence[tuple[str, int, int]]) -> bytes:
    """The source without its definitions, every other line at its number."""
    parts, at = [], 0
    for _, start, end in chunks:
        parts += [source[at:start], b"\n" * source.count(b"\n", start, end)]
        at = end
    return b"".join([*parts, source[at:]])
