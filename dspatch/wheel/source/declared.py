"""What a build fetches from other projects: the FetchContent declarations of a tree's CMake files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMMENT = re.compile(r"#[^\n]*")
_DECLARED = re.compile(r"FetchContent_Declare\s*\(([^)]*)\)", re.IGNORECASE)
_SET = re.compile(r"\bset\s*\(\s*(\w+)\s+\"?([^\s\"()$]+)\"?\s*\)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_MINIMUM = re.compile(r"cmake_minimum_required\s*\(\s*VERSION\s+(\d+(?:\.\d+)*)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A project by the name that CMake knows it by, its repository, and a tag or commit of it."""

    name: str
    repository: str
    tag: str

    @property
    def variable(self) -> str:
        """The CMake variable that names a folder to take instead."""
        return f"FETCHCONTENT_SOURCE_DIR_{self.name.upper()}"


def is_cmake(path: str) -> bool:
    """Whether a file of a tree is CMake's."""
    return path.rpartition("/")[2] == "CMakeLists.txt" or path.endswith(".cmake")


def declared(texts: Iterable[str]) -> tuple[Declared, ...]:
    """The projects that CMake files fetch by git, each once, in the order in which they stand there."""
    found = {each.name.upper(): each for text in texts for each in _of(text)}
    return tuple(found.values())


def minimum(text: str) -> str | None:
    """The CMake that a top-level CMakeLists.txt asks for."""
    found = _MINIMUM.search(_COMMENT.sub("", text))
    return found[1] if found else None


def _of(text: str) -> Iterator[Declared]:
    code = _COMMENT.sub("", text)
    known = dict(_SET.findall(code))
    for match in _DECLARED.finditer(code):
        words = _VARIABLE.sub(lambda one: known.get(one[1], one[0]), match[1]).split()
        named = dict(pairwise(words))
        repository, tag = named.get("GIT_REPOSITORY"), named.get("GIT_TAG")
        if words and repository and tag:
            yield Declared(name=words[0], repository=_plain(repository), tag=_plain(tag))


def _plain(word: str) -> str:
    return word.strip('"')
