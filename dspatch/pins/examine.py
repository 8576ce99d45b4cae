"""Read from the files what a pin states: the source's commit, base wheels' needs, differences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from dspatch import archive, syntax
from dspatch.errors import BaseDiffersError
from dspatch.files import sha256
from dspatch.pins import needs
from dspatch.pins.engines import Engine
from dspatch.pins.types import Accepted, Base, Target
from dspatch.wheel.base import open_wheel
from dspatch.wheel.difference import compare
from dspatch.wheel.plan import Difference

SHOWN = 20
Rules: TypeAlias = Sequence[Accepted]


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """The files of the engine's package by path, their commit, and the Pythons that they take."""

    files: Mapping[str, bytes]
    commit: str | None
    requires_python: str | None


def source_tree(facts: Engine, path: Path) -> SourceTree:
    """Read a release's source from its sdist, or from a wheel that upstream built."""
    if path.suffix == ".whl":
        with open_wheel(path) as wheel:
            metadata = wheel.read_info("METADATA")
        members = {each.path: each.data for each in archive.wheel_members(path)}
    else:
        members = {each.path: each.data for each in archive.sdist_members(path)}
        metadata = members.get("PKG-INFO", b"")
    return SourceTree(
        files={
            name: data for name, data in members.items() if name.startswith(f"{facts.package}/")
        },
        commit=commit_id(members.get(facts.version_file, b"")),
        requires_python=needs.requires_python(metadata),
    )


def commit_id(version_file: bytes) -> str | None:
    """The commit that a generated version file names, without git-describe's `g`; may be short."""
    try:
        module = syntax.parse(version_file)
    except (SyntaxError, ValueError):
        return None
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
            found = re.fullmatch(r"g?([0-9a-f]{7,40})", str(statement.value.value))
            if found and names & {"commit_id", "__commit_id__"}:
                return found[1]
    return None


def base_wheel(
    facts: Engine, source: SourceTree, target: Target, project: str, path: Path, accept: Rules
) -> tuple[Base, tuple[Difference, ...]]:
    """The base wheel as a pin states it, and every file in which it differs from the source.

    Raises `BaseDiffersError` with those that neither `accept` nor the engine's rules cover.
    """
    platform = path.stem.rpartition("-")[2]
    with open_wheel(path) as wheel:
        metadata = wheel.read_info("METADATA")
        differences = compare(wheel, source.files)
    rules = explain(path.name, differences, [*accept, *facts.accepted(target)])
    elf = needs.elf_needs(path)
    base = Base(
        target=target,
        project=project,
        filename=path.name,
        sha256=sha256(path),
        size=path.stat().st_size,
        requires_python=needs.requires_python(metadata),
        torch=needs.requirement(metadata, facts.torch, platform),
        platform=platform,
        glibc=elf.glibc,
        glibcxx=elf.glibcxx,
        accepted=tuple(dict.fromkeys(rules.values())),
    )
    return base, tuple(replace(each, reason=rules[each.path].reason) for each in differences)


def explain(name: str, differences: Iterable[Difference], rules: Rules) -> dict[str, Accepted]:
    """The rule that covers each differing path; raises `BaseDiffersError` for those without."""
    covered: dict[str, Accepted] = {}
    bare: list[Difference] = []
    for difference in differences:
        rule = next((rule for rule in rules if rule.covers(difference.path)), None)
        if rule is None:
            bare.append(difference)
        else:
            covered[difference.path] = rule
    if bare:
        shown = [f"{each.kind:>11}  {each.path}" for each in bare[:SHOWN]]
        more = [f"… and {len(bare) - SHOWN} more"] if len(bare) > SHOWN else []
        raise BaseDiffersError(
            f"{name} differs from the source in {len(bare)} files that nobody accepted.",
            why="\n        ".join(["compared by hash with the release's source:", *shown, *more]),
            next=f"look at each, then add --accept '{bare[0].path}=why that is harmless'",
        )
    return covered
