"""What a wheel asks for, as its pin has it: some requirements narrowed, false ones replaced, each for a reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
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
    bounds, overrides = (
        [each.requirement for each in some] for some in (base.bounds, base.overrides)
    )
    return changed(stated(path), bounds, overrides)


def stated(path: Path) -> list[str]:
    """The requirements of a wheel, as its METADATA has them."""
    with open_wheel(path) as wheel:
        return headers(wheel, "METADATA").get_all("Requires-Dist", [])


def changed(
    requires: Sequence[str], bounds: Iterable[str], overrides: Iterable[str] = ()
) -> dict[str, str]:
    """The requirements whose versions `overrides` replace and `bounds` narrow, and what each must say then.

    All else of them stays. Raises `WheelError` for one on a project that nothing asks for.
    """
    found: dict[str, str] = {}
    for how, some in (("overrides", overrides), ("binds", bounds)):
        for wanted in map(Requirement, some):
            for text in _of_project(requires, wanted, how):
                requirement = Requirement(found.get(text, text))
                kept = SpecifierSet() if how == "overrides" else requirement.specifier
                requirement.specifier = kept & wanted.specifier
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
