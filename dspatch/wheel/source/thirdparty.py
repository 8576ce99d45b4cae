"""Sources of other projects that builds fetch: which commit a tag means, and the hash of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from dspatch import tomlfile
from dspatch.errors import PinError
from dspatch.git import Entry
from dspatch.wheel.source.declared import Declared
from dspatch.wheel.source.recipe import own_table

TABLE = Path(__file__).with_name("thirdparty.toml")
SUBMODULE = "160000"
_KEYS = ("name", "repository", "tag", "commit", "sha256", "without", "submodules")


@dataclass(frozen=True, kw_only=True)
class Project:
    """One commit of a project: what CMake calls it (`tag`), and what its files hash to.

    `without` are globs of files that no build reads; `submodules` maps a folder to a project's name.
    """

    name: str
    repository: str
    tag: str
    commit: str
    sha256: str
    without: tuple[str, ...]
    submodules: Mapping[str, str]

    def wanted(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """The files of its tree that a build is given."""
        return {
            path: entry
            for path, entry in entries.items()
            if entry.mode != SUBMODULE and not any(fnmatchcase(path, one) for one in self.without)
        }

    def as_dict(self) -> dict[str, str]:
        """The project as a receipt states it."""
        names = ("name", "repository", "tag", "commit", "sha256")
        return {name: getattr(self, name) for name in names}


def own_projects() -> Path:
    """Where the user's own projects are told: `thirdparty.toml`, beside the user's builds."""
    return own_table().with_name(TABLE.name)


def table() -> tuple[Project, ...]:
    """Every project that is known, the user's own first. Raises `PinError` with file and line."""
    own = own_projects()
    return (*(_read(own) if own.is_file() else ()), *_shipped())


def pinned(wanted: Declared) -> Project | None:
    """The project that a CMake file declares, where its tag is known."""
    for project in table():
        same = _plain(project.repository) == _plain(wanted.repository)
        if same and wanted.tag in (project.tag, project.commit):
            return project
    return None


def submodule(name: str, commit: str) -> Project | None:
    """The project of a submodule at a commit."""
    return next((one for one in table() if (one.name, one.commit) == (name, commit)), None)


@cache
def _shipped() -> tuple[Project, ...]:
    return tuple(_read(TABLE))


def _read(path: Path) -> list[Project]:
    source = tomlfile.load(path, PinError)
    source.check_keys(source.data, ("project",))
    source.get(source.data, "project", list)  # a file without any is a mistake
    return [_project(source, row) for row in source.tables(source.data, "project", _KEYS)]


def _project(source: tomlfile.TomlFile, row: dict[str, Any]) -> Project:
    text = {key: source.get(row, key, str, within="project") for key in _KEYS[:5]}
    if len(text["commit"]) != 40 or len(text["sha256"]) != 64:
        raise source.fail(
            f"`commit` of {text['name']} has 40 digits, `sha256` 64", key="commit", within="project"
        )
    return Project(
        **text,
        without=source.strings(row, "without", within="project"),
        submodules=source.get(row, "submodules", dict, within="project", default={}),
    )


def _plain(repository: str) -> str:
    return repository.lower().removesuffix("/").removesuffix(".git")
