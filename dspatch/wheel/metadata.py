"""Rewrite METADATA and WHEEL line by line, so that all that need not change keeps its bytes."""

from __future__ import annotations

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


def _malformed(what: str) -> Never:
    raise WheelError(
        f"The base wheel cannot be given a new identity: {what}.",
        next="pin another base wheel for this revision",
    ) from None
