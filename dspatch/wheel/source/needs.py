"""What upstream's build asks for, from its own pyproject.toml; another torch where one is wanted."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dspatch.errors import SourceBuildError
from dspatch.wheel.metadata import satisfiable

# What every build may use whatever it asks for: setup.py of a project without pyproject.toml.
_DEFAULT = ("setuptools", "wheel")


def requirements(pyproject: bytes | None, torch: str | None = None) -> tuple[str, ...]:
    """The build's requirements, sorted; `torch`, a version, stands for the one that it asks for.

    Raises `SourceBuildError` for a pyproject.toml that cannot be read.
    """
    stated = _stated(pyproject) if pyproject is not None else _DEFAULT
    return tuple(sorted({_line(text, torch) for text in stated}))


def bounded(requires: Sequence[str], bounds: Sequence[str]) -> dict[str, str]:
    """The requirements of a wheel that `bounds` narrow, and what each must say then.

    Raises `SourceBuildError` for a bound on a project that the wheel does not ask for.
    """
    found = {}
    for bound in map(Requirement, bounds):
        stated = [text for text in requires if _project(text) == canonicalize_name(bound.name)]
        if not stated:
            raise SourceBuildError(
                f"The wheel asks for no {bound.name}, which its pin binds.",
                next="write the pin anew with `dspatch pin add`, without that --bound",
            )
        for text in stated:
            requirement = Requirement(text)
            requirement.specifier &= bound.specifier
            found[text] = str(requirement)
    return found


def _project(text: str) -> str:
    return canonicalize_name(Requirement(text).name)


def torch_lines(requires: Sequence[str], torch: str) -> dict[str, str]:
    """The requirements of a wheel on torch, and what each must say of the torch that it was built with."""
    found = {}
    for text in requires:
        requirement = Requirement(text)
        if requirement.name == "torch":
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            found[text] = f"torch=={torch}{marker}"
    return found


def _stated(pyproject: bytes) -> Sequence[str]:
    try:
        table = tomllib.loads(pyproject.decode())
        stated: list[str] = table.get("build-system", {}).get("requires", list(_DEFAULT))
        return [str(Requirement(text)) for text in stated]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, InvalidRequirement, TypeError) as error:
        raise SourceBuildError(
            "The tree's pyproject.toml does not say what its build needs.",
            why=str(error),
            next="look whether a patch of the series changed it",
        ) from None


def _line(text: str, torch: str | None) -> str:
    requirement = Requirement(text)
    if requirement.name == "torch" and torch is not None:
        return f"torch=={torch}"
    return satisfiable(str(requirement))
