"""What a wheel asks for, as its pin has it: some requirements narrowed, false ones replaced, each for a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dspatch.errors import WheelError
from dspatch.wheel.base import open_wheel
from dspatch.wheel.checks import headers

if TYPE_CHECKING:
    from dspatch.pins import Base


def of_base(path: Path, base: Base) -> dict[str, str]:
    """The requirements of a base wheel that its pin narrows or replaces, and what each must say then.

    Raises `WheelError` for a project that the wheel does not ask for.
    """
    if not (base.bounds or base.overrides):
        return {}
    asked = stated(path)
    narrowed = bounded(asked, [each.requirement for each in base.bounds])
    return narrowed | overridden(asked, [each.requirement for each in base.overrides])


def stated(path: Path) -> list[str]:
    """The requirements of a wheel, as its METADATA has them."""
    with open_wheel(path) as wheel:
        return headers(wheel, "METADATA").get_all("Requires-Dist", [])


def bounded(requires: Sequence[str], bounds: Iterable[str]) -> dict[str, str]:
    """The requirements that `bounds` narrow, and what each must say then; the rest of it stays.

    Raises `WheelError` for a bound on a project that nothing asks for.
    """
    found = {}
    for bound in map(Requirement, bounds):
        for text in _of_project(requires, bound, "binds"):
            requirement = Requirement(text)
            requirement.specifier &= bound.specifier
            found[text] = str(requirement)
    return found


def overridden(requires: Sequence[str], overrides: Iterable[str]) -> dict[str, str]:
    """The requirements whose versions `overrides` replace, and what each must say then; markers stay.

    Raises `WheelError` for an override of a project that nothing asks for.
    """
    found = {}
    for override in map(Requirement, overrides):
        for text in _of_project(requires, override, "overrides"):
            requirement = Requirement(text)
            requirement.specifier = override.specifier
            found[text] = str(requirement)
    return found


def asks_for(requires: Iterable[str], requirement: str) -> bool:
    """Whether one of the requirements is of the project that another one names."""
    return any(_same(text, Requirement(requirement)) for text in requires)


def _of_project(requires: Sequence[str], wanted: Requirement, how: str) -> Iterator[str]:
    asked = [text for text in requires if _same(text, wanted)]
    if not asked:
        raise WheelError(
            f"The wheel asks for no {wanted.name}, which its pin {how}.",
            next=f"write the pin anew with `dspatch pin add`, without what {how} it",
        )
    yield from asked


def _same(text: str, wanted: Requirement) -> bool:
    return canonicalize_name(Requirement(text).name) == canonicalize_name(wanted.name)
