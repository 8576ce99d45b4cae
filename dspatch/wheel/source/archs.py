"""CUDA architectures of a build: named as people name them, written as its build reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from pathlib import Path

from packaging.version import Version

from dspatch import process
from dspatch.errors import MissingToolsError, ProcessError, SourceBuildError
from dspatch.wheel import fatbin
from dspatch.wheel.source.recipe import Archs, Recipe

# 90, 9.0, 90a, 9.0a, sm_90a: the digits of a compute capability and its letter.
_NAME = re.compile(r"(?:sm_)?(\d{1,2})\.?(\d)([af]?)")


def read(names: Sequence[str]) -> tuple[str, ...]:
    """Architectures as nvcc numbers them, such as `90a`, each once. Raises `SourceBuildError`."""
    found = list[str]()
    for name in names:
        match = _NAME.fullmatch(name.strip().lower())
        if match is None:
            raise SourceBuildError(
                f"`{name}` is no CUDA architecture.",
                why="one is named by its compute capability: 80, 8.0, 90a, 9.0a",
                next="name what the build is for: --arch 80 --arch 90a",
            )
        found.append("".join(match.groups()))
    return tuple(dict.fromkeys(found))


def setting(recipe: Recipe, names: Sequence[str]) -> dict[str, str]:
    """The variable that makes a build compile for these architectures alone; none for none."""
    wanted = read(names)
    if not wanted:
        return {}
    if recipe.archs is None or not recipe.cuda:
        raise SourceBuildError(
            f"A build of {recipe.engine} for {recipe.device} has no CUDA architectures.",
            next="leave --arch out, or use --device cuda",
        )
    return {recipe.archs.variable: written(recipe.archs, wanted)}


def written(how: Archs, wanted: Sequence[str]) -> str:
    """Architectures in the form of one build."""
    if how.form == "cmake":
        # Machine code alone: what any later card would compile for itself is not wanted.
        return ";".join(f"{name}-real" for name in wanted)
    return ";".join(re.sub(r"(\d)([af]?)$", r".\1\2", name) for name in wanted)


def check(nvcc: str, version: Version | None, names: Sequence[str]) -> None:
    """Raise `MissingToolsError` for an architecture that this nvcc has not."""
    wanted = read(names)
    if not wanted:
        return
    try:
        said = process.run([nvcc, "--list-gpu-code"]).stdout
    except ProcessError:
        return  # too old to be asked: it will say so itself
    # It lists 90 alone, and takes 90a too.
    known = set(re.findall(r"sm_(\d+)", said))
    unknown = [name for name in wanted if not _compiles(name, known)]
    if unknown:
        raise MissingToolsError(
            f"nvcc {version} does not compile for {', '.join(unknown)}.",
            why=f"it knows {', '.join(sorted(known, key=int))}, and from 90 on each with an `a`",
            next="name others with --arch, or let CUDA_HOME name another toolkit",
        )


def check_made(wheel: Path, names: Sequence[str], log: Path) -> None:
    """Raise `SourceBuildError` for an architecture that no compiled member of a wheel is for.

    CMake files drop what they do not know without failing, and the compiler then takes its own.
    """
    wanted = read(names)
    found = fatbin.of_wheel(wheel) if wanted else frozenset()
    missing = [name for name in wanted if int(name.rstrip("af")) not in found]
    if missing:
        there = ", ".join(map(str, sorted(found))) or "no architecture"
        raise SourceBuildError(
            f"Upstream's build compiled nothing for {', '.join(missing)}.",
            why=f"its machine code is for {there}: the release's CMake files drop what they do not know",
            next=f"the log says what they take (supported arches): {log}; name one of those with --arch",
        )


def _compiles(name: str, known: Set[str]) -> bool:
    digits = name.rstrip("af")
    return digits in known and (name == digits or int(digits) >= 90)
