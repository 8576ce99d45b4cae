"""Compiled extensions of a job's wheel: which its patches declare, and the objects made of the patched tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch import paths
from dspatch.console import Console
from dspatch.extensionspec import Extension
from dspatch.git import Entry
from dspatch.job import Job
from dspatch.series import layered
from dspatch.wheel import extension as own
from dspatch.wheel.extension import Compiler

# Raise when the same sources would give another object than before.
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Extensions:
    """What is to be compiled into a wheel, and by which compiler.

    Without a compiler nothing is compiled, and the sources still are the extensions' own.
    """

    declared: tuple[Extension, ...] = ()
    compiler: Compiler | None = None

    @property
    def inputs(self) -> list[object]:
        """What the wheel's bytes depend on besides the patched tree; nothing where none is declared."""
        if not self.declared:
            return []
        return [["extensions", FORMAT, self.compiler.name if self.compiler else "left out"]]

    @property
    def told(self) -> dict[str, object]:
        """The extensions as a receipt tells them."""
        names = [each.path for each in self.declared]
        by = self.compiler.name if self.compiler else None
        return {"extensions": {"paths": names, "compiler": by}} if names else {}

    def sources(self, changed: Iterable[str]) -> frozenset[str]:
        """Those of the changed files that the extensions are compiled from."""
        return frozenset(path for path in changed if any(e.owns(path) for e in self.declared))


def declared(job: Job, content: Mapping[str, Any], *, left_out: bool) -> Extensions:
    """The extensions of the patches that a job has applied.

    Raises `MissingToolsError` when they are wanted and no compiler here is new enough.
    """
    applied = {patch["name"]: patch for patch in content["patches"]}
    found = tuple(
        extension
        for patch in layered(job.id.engine).patches
        if patch.name in applied
        for extension in patch.within(applied[patch.name].get("package", "")).extensions
        # A form of the patch may be without them.
        if all(unit.source in applied[patch.name]["paths"] for unit in extension.units)
    )
    wanted = found and not left_out
    return Extensions(declared=found, compiler=own.compiler_for(found) if wanted else None)


def objects(
    wanted: Extensions,
    tree: Mapping[str, Entry],
    read: Callable[[str], bytes],
    base: str,
    console: Console,
    glibc: str | None = None,
) -> dict[str, Path]:
    """The compiled objects by their paths in the wheel; those of the same sources are kept.

    base: the file name of the wheel that they go into. glibc: what its own members need.
    Raises what `dspatch.wheel.extension.compiled` raises.
    """
    if wanted.compiler is None:
        return {}
    made = {}
    for each in wanted.declared:
        sources = {path: read(entry.blob) for path, entry in tree.items() if each.owns(path)}
        made[each.path] = _object(each, sources, wanted.compiler, base, console, glibc)
    return made


def _object(
    extension: Extension,
    sources: Mapping[str, bytes],
    compiler: Compiler,
    base: str,
    console: Console,
    glibc: str | None,
) -> Path:
    kept = paths.cache() / "extensions" / f"{_key(extension, sources, compiler, base)}.so"
    if kept.is_file():
        return kept
    with console.working(f"compiling {extension.path} with {compiler.name}"):
        return own.compiled(extension, sources, compiler, base, kept, glibc)


def _key(extension: Extension, sources: Mapping[str, bytes], compiler: Compiler, base: str) -> str:
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in sources.items()}
    inputs = [FORMAT, repr(extension), sorted(hashes.items()), compiler.name, base]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:24]
