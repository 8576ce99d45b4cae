"""What can stand behind a log's lines: findings about engines, and causes that are no engine's fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dspatch import series, tomlfile
from dspatch.audit import finding as findings
from dspatch.audit import signature
from dspatch.audit.finding import Finding
from dspatch.audit.signature import Signature
from dspatch.errors import PatchFormatError
from dspatch.paths import PACKAGE
from dspatch.serve.doctor.checks import CHECKS
from dspatch.tomlfile import TomlFile

FOLDER = PACKAGE / "serve" / "causes"
Part = Literal["cause", "general", "symptom"]
_KEYS = (
    *("id", "title", "what", "engines", "part", "fix", "confirm", "references", "check", "date"),
    signature.TABLE,
)
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause and its signatures; `engines` empty means any.

    A `symptom` follows from other causes; a `general` one gives way to any other on its line.
    `fix` and `confirm` may hold `{name}`, the named group of a signature that matched. `check` names
    the question to the machine that confirms it. `finding` is set where it is one of an engine.
    """

    id: str
    title: str
    what: str
    engines: tuple[str, ...]
    signatures: tuple[Signature, ...] = field(repr=False)
    part: Part = "cause"
    fix: str = ""
    confirm: str = ""
    references: tuple[str, ...] = ()
    check: str = ""
    finding: Finding | None = field(default=None, repr=False)


def load_all(folder: Path | None = None) -> tuple[Cause, ...]:
    """Every cause that has signatures; raises `PatchFormatError` that names file and line."""
    own = [load(path) for path in sorted((folder or FOLDER).glob("*.toml"))]
    return (*_of_findings(), *own)


def _of_findings() -> Iterator[Cause]:
    for engine in findings.engines():
        for each in findings.load_all(engine, series.layered(engine).traits):
            if each.signatures:
                yield of_finding(each)


def of_finding(finding: Finding) -> Cause:
    """A finding about an engine as a cause."""
    return Cause(
        id=finding.id,
        title=finding.title,
        what=finding.what,
        engines=(finding.engine,),
        signatures=finding.signatures,
        fix=finding.workaround or "",
        confirm=f"dspatch audit --explain {finding.id}",
        references=finding.references,
        finding=finding,
    )


def load(path: Path) -> Cause:
    """Read one cause; raises `PatchFormatError` that names file, line and what was expected."""
    source = tomlfile.load(path, PatchFormatError)
    data = source.data
    source.check_keys(data, _KEYS)
    cause = Cause(
        id=source.get(data, "id", str),
        title=findings.title(source),
        what=" ".join(source.get(data, "what", str).split()),
        engines=source.strings(data, "engines"),
        signatures=signature.signatures(source),
        part=findings.choice(source, "part", get_args(Part), default="cause"),
        fix=" ".join(source.get(data, "fix", str).split()),
        confirm=" ".join(source.get(data, "confirm", str).split()),
        references=findings.references(source),
        check=source.get(data, "check", str, default=""),
    )
    for key, fault in _faults(cause, path):
        raise source.fail(fault, key=key)
    _placeholders(cause, source)
    return cause


def _faults(cause: Cause, path: Path) -> Iterator[tuple[str, str]]:
    if cause.id != path.stem:
        yield "id", f"`id` is {cause.id!r}; expected the file's name"
    if not cause.fix or not cause.confirm:
        yield "fix", "`fix` and `confirm` must say something"
    if cause.check and cause.check not in CHECKS:
        yield "check", f"`check` must be one of {', '.join(sorted(CHECKS))}"
    if not cause.signatures and not cause.check:
        yield "id", "neither a signature nor a check could ever show it"
    for engine in cause.engines:
        if engine not in findings.engines():
            yield "engines", f"`{engine}` is no engine that dspatch knows"


def _placeholders(cause: Cause, source: TomlFile) -> None:
    """Every `{name}` of the words must be a group of at least one signature."""
    known = {name for each in cause.signatures for name in each.regex.groupindex}
    for key in ("fix", "confirm"):
        for name in _PLACE.findall(getattr(cause, key)):
            if name not in known:
                raise source.fail(f"`{{{name}}}` is no group of a signature", key=key)


def filled(text: str, groups: Mapping[str, str]) -> str:
    """Words with the groups of a match in their places; what nobody stated stays a word in capitals.

    Other braces, as those of a JSON value in a command, stay as they are.
    """
    return _PLACE.sub(lambda place: groups.get(place[1]) or place[1].upper(), text)
