"""Rewrite and read the module in which an engine states its version, never running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Never

from packaging.version import Version

from dspatch import syntax
from dspatch.errors import WheelError
from dspatch.wheel.plan import Rewrite

_VERSION_NAMES = ("__version__", "version")
_TUPLE_NAMES = ("__version_tuple__", "version_tuple")


def rewrite_version_file(data: bytes, path: str, version: str) -> tuple[bytes, tuple[Rewrite, ...]]:
    """The engine's version module, stating `version` wherever it states its own as a literal."""
    spans = list(_version_literals(data, path))
    if not any(names is _VERSION_NAMES for _, names in spans):
        _malformed(f"{path} states no version as a literal")
    rewrites: list[Rewrite] = []
    # From the end to the start, so that earlier spans keep their place.
    for (start, end), names in sorted(spans, reverse=True):
        new = repr(version if names is _VERSION_NAMES else version_tuple(version))
        rewrites.append(Rewrite(file=path, old=data[start:end].decode(), new=new))
        data = data[:start] + new.encode() + data[end:]
    return data, tuple(reversed(rewrites))


def stated_version(data: bytes, path: str) -> str:
    """The version that a version module states, read without importing it."""
    found = {
        ast.literal_eval(data[start:end].decode())
        for (start, end), names in _version_literals(data, path)
        if names is _VERSION_NAMES
    }
    if len(found) != 1:
        _malformed(f"{path} states {len(found)} versions: {sorted(found)}")
    return str(found.pop())


def version_tuple(version: str) -> tuple[int | str, ...]:
    """A version in parts, as setuptools-scm writes it: `(0, 27, 1, 'cpu.dspatch.1a2b')`."""
    parsed = Version(version)
    parts: list[int | str] = list(parsed.release)
    if parsed.pre:
        parts.append("".join(map(str, parsed.pre)))
    if parsed.post is not None:
        parts.append(f"post{parsed.post}")
    if parsed.dev is not None:
        parts.append(f"dev{parsed.dev}")
    return (*parts, parsed.local) if parsed.local else tuple(parts)


def _version_literals(data: bytes, path: str) -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """The byte spans of the version literals of a module, and which kind each is."""
    try:
        tree = syntax.parse(data)
    except (SyntaxError, ValueError) as error:
        _malformed(f"{path} is no Python: {error}")
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        value = statement.value
        if isinstance(value, ast.Constant | ast.Tuple) and (kind := _kind(names, value)):
            yield (_offset(starts, value.lineno, value.col_offset), _end(starts, value)), kind


def _kind(names: set[str], value: ast.Constant | ast.Tuple) -> tuple[str, ...]:
    if isinstance(value, ast.Tuple):
        return _TUPLE_NAMES if names.intersection(_TUPLE_NAMES) else ()
    is_text = isinstance(value.value, str)
    return _VERSION_NAMES if is_text and names.intersection(_VERSION_NAMES) else ()


def _offset(starts: list[int], line: int, column: int) -> int:
    return starts[line - 1] + column


def _end(starts: list[int], value: ast.expr) -> int:
    assert value.end_lineno is not None
    assert value.end_col_offset is not None
    return _offset(starts, value.end_lineno, value.end_col_offset)


def _malformed(what: str) -> Never:
    raise WheelError(
        f"The base wheel cannot be given a new identity: {what}.",
        next="pin another base wheel for this revision",
    ) from None
