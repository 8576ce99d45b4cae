"""Give a wheel its own identity: METADATA, WHEEL and the engine's version file, rewritten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Never

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from dspatch import __version__
from dspatch.errors import WheelError
from dspatch.wheel.plan import Rewrite

_VERSION_NAMES = ("__version__", "version")
_TUPLE_NAMES = ("__version_tuple__", "version_tuple")
# Where the base tells its users to go with a fault. An overlay's faults are not theirs to mend; who
# wrote the base stays named (Author).
_CONTACTS = ("maintainer", "maintainer-email", "bugtrack-url")
_TRACKERS = ("bugtracker", "issues", "issuetracker", "tracker", "bugreports")


def rewrite_metadata(
    data: bytes, *, name: str, version: str, requirements: Mapping[str, str]
) -> tuple[bytes, tuple[Rewrite, ...]]:
    """METADATA under another name and version, with requirements that an index can satisfy.

    Every other line and the description keep their bytes, except that the base's maintainer and
    issue tracker are dropped. Raises `WheelError` for a missing field or an unused `requirements`.
    """
    head, gap, body = _split(data)
    new_head: list[str] = []
    rewrites: list[Rewrite] = []
    fields = {"name": canonicalize_name(name), "version": str(Version(version))}
    for line in _fields(head):
        new = _metadata_line(line, fields, requirements)
        new_head.append(new)
        if new != line:
            rewrites.append(Rewrite(file="METADATA", old=line.rstrip(), new=new.rstrip()))
    stated = [line.partition(":") for line in _fields(head)]
    if missing := fields.keys() - {key.lower() for key, _, _ in stated}:
        _malformed(f"METADATA has no {', '.join(sorted(missing))}")
    if unused := requirements.keys() - {value.strip() for _, _, value in stated}:
        _malformed(f"METADATA has no such requirement: {', '.join(sorted(unused))}")
    return "".join(new_head).encode("utf-8", "surrogateescape") + gap + body, tuple(rewrites)


def satisfiable(requirement: str) -> str:
    """A requirement without a local version, which no index serves: `==2.1+cpu` becomes `==2.1`."""
    try:
        specifiers = Requirement(requirement).specifier
    except InvalidRequirement:
        return requirement
    for specifier in specifiers:
        if specifier.operator in ("==", "===") and "+" in specifier.version:
            public = specifier.version.partition("+")[0]
            requirement = requirement.replace(specifier.version, public)
    return requirement


def rewrite_wheel(data: bytes, tags: frozenset[Tag]) -> tuple[bytes, tuple[Rewrite, ...]]:
    """The WHEEL file as written by dspatch, with the tags that the wheel's file name states.

    Community builds rename a wheel without touching its WHEEL: the two disagree there.
    """
    lines = data.decode().splitlines()
    stated = {line for line in lines if line.startswith("Tag:")}
    named = {f"Tag: {tag}" for tag in tags}
    kept = [line for line in lines if line and not line.startswith(("Tag:", "Generator:"))]
    generator = next((line for line in lines if line.startswith("Generator:")), "")
    own = f"Generator: dspatch ({__version__})"
    rewrites = [Rewrite(file="WHEEL", old=generator, new=own)]
    if stated != named:
        old, new = ("; ".join(sorted(tag)) for tag in (stated, named))
        rewrites.append(Rewrite(file="WHEEL", old=old, new=new))
    text = "\n".join([*kept[:1], own, *kept[1:], *sorted(named)]) + "\n"
    return text.encode(), tuple(rewrites)


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


def _split(data: bytes) -> tuple[str, bytes, bytes]:
    match = re.search(rb"(?<=\n)\r?\n", data)
    head, gap, body = (
        (data, b"", b"")
        if match is None
        else (
            data[: match.start()],
            match.group(),
            data[match.end() :],
        )
    )
    return head.decode("utf-8", "surrogateescape"), gap, body


def _fields(head: str) -> Iterator[str]:
    """The fields of a header, each with its continuation lines and its line end."""
    return (
        match.group()
        for match in re.finditer(r"[^\n]*(?:\n[ \t][^\n]*)*(?:\n|\Z)", head)
        if match.group()
    )


def _metadata_line(line: str, fields: Mapping[str, str], requirements: Mapping[str, str]) -> str:
    key, _, value = line.partition(":")
    end = line[len(line.rstrip()) :]
    stated = value.strip()
    if key.lower() in fields:
        return f"{key}: {fields[key.lower()]}{end}"
    if key.lower() == "requires-dist":
        new = requirements.get(stated, satisfiable(stated))
        return line if new == stated else f"{key}: {new}{end}"
    label = re.sub(r"[^a-z]", "", stated.partition(",")[0].lower())
    if key.lower() in _CONTACTS or (key.lower() == "project-url" and label in _TRACKERS):
        return ""
    return line


def _version_literals(data: bytes, path: str) -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """The byte spans of the version literals of a module, and which kind each is."""
    try:
        tree = ast.parse(data)
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
