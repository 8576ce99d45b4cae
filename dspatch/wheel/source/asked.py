"""What a tree asks for to be built: packages, CMake, sources of other projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from dspatch.git import Repo
from dspatch.wheel.source import declared, needs, thirdparty
from dspatch.wheel.source.declared import Declared
from dspatch.wheel.source.recipe import Recipe
from dspatch.wheel.source.thirdparty import Project

PYPROJECT = "pyproject.toml"
CMAKE = "CMakeLists.txt"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """`packages` of the build environment, the oldest `cmake`, and what CMake would fetch.

    Of that, `pinned` are known by hash and handed over; `loose` are left to the build itself.
    """

    packages: tuple[str, ...]
    cmake: Version | None
    pinned: tuple[tuple[Declared, Project], ...]
    loose: tuple[Declared, ...]


def by_tree(
    repo: Repo, tree: str, recipe: Recipe, own: Iterable[str], torch: str | None, words: str
) -> Asked:
    """What a tree asks for, beside the `own` packages of the recipe.

    `words` are the user's own for CMake, whose folders are left to them.

    Raises `SourceBuildError` for build files that cannot be read.
    """
    compiles = recipe.compiler is not None
    entries = {
        path: entry
        for path, entry in repo.entries(tree).items()
        if path in (PYPROJECT, *recipe.requirements) or (compiles and declared.is_cmake(path))
    }
    with repo.reading() as read:
        files = {path: read(entry.blob) for path, entry in entries.items()}
    more = [*needs.lines(files, recipe.requirements), *own] if compiles else []
    fetched = _fetched(files, recipe, words) if compiles else ()
    found = [(one, thirdparty.pinned(one)) for one in fetched]
    least = declared.minimum(files.get(CMAKE, b"").decode(errors="replace")) if compiles else None
    return Asked(
        packages=needs.requirements(files.get(PYPROJECT), torch, more),
        cmake=Version(least) if least else None,
        pinned=tuple((one, project) for one, project in found if project),
        loose=tuple(one for one, project in found if project is None),
    )


def _fetched(files: Mapping[str, bytes], recipe: Recipe, words: str) -> tuple[Declared, ...]:
    texts = [
        data.decode(errors="replace") for path, data in files.items() if declared.is_cmake(path)
    ]
    return tuple(
        one
        for one in declared.declared(texts)
        if one.name not in recipe.tests_only and one.variable not in words
    )
