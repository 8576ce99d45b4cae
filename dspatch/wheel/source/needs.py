"""What upstream's build asks for, from its own pyproject.toml; another torch where one is wanted."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from dspatch.errors import SourceBuildError
from dspatch.wheel.metadata import satisfiable

# What every build may use whatever it asks for: setup.py of a project without pyproject.toml.
_DEFAULT = ("setuptools", "wheel")


def requirements(
    pyproject: bytes | None, torch: str | None = None, more: Iterable[str] = ()
) -> tuple[str, ...]:
    """The build's requirements, sorted; `torch`, a version, stands for the one that it asks for.

    `more` are requirements that stand elsewhere. Raises `SourceBuildError` for a pyproject.toml
    that cannot be read.
    """
    stated = [*(_stated(pyproject) if pyproject is not None else _DEFAULT), *more]
    return tuple(sorted({_line(text, torch) for text in stated}))


def refuse_torch(packages: Iterable[str]) -> None:
    """Raise `SourceBuildError` for a torch that was asked for, where a build needs none."""
    if all(Requirement(text).name != "torch" for text in packages):
        raise SourceBuildError(
            "This build does not ask for torch, so it is built with none.",
            next="leave --torch out",
        )


def lines(files: Mapping[str, bytes], names: Iterable[str]) -> Iterator[str]:
    """The requirements in some files of a tree, one a line; files that are not there hold none.

    Raises `SourceBuildError` for a line that is none.
    """
    for name in names:
        for line in files.get(name, b"").decode(errors="replace").splitlines():
            text = line.partition("#")[0].strip()
            if text:
                yield _read(name, text)


def _read(name: str, text: str) -> str:
    try:
        return str(Requirement(text))
    except InvalidRequirement as error:
        raise _unreadable(name, f"{text!r}: {error}") from None


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
        raise _unreadable("pyproject.toml", str(error)) from None


def _unreadable(name: str, why: str) -> SourceBuildError:
    return SourceBuildError(
        f"The tree's {name} does not say what its build needs.",
        why=why,
        next="look whether a patch of the series changed it",
    )


def _line(text: str, torch: str | None) -> str:
    requirement = Requirement(text)
    if requirement.name == "torch" and torch is not None:
        return f"torch=={torch}"
    return satisfiable(str(requirement))
