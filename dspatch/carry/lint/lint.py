"""What `patch lint` finds wrong with a series as its folders show it, every fault at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dspatch.patchfile import Patch
from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong: which rule it breaks, where, and what to do about it.

    `patch` is empty where the fault is none of one patch; `diff` shows a generated file beside what
    it should be.
    """

    rule: str
    patch: str
    where: str
    what: str
    next: str
    diff: str = ""


def in_patch(rule: str, patch: Patch, what: str, next: str) -> Fault:
    """A fault that stands in a patch's patch.toml."""
    where = f"{patch.name}/patch.toml"
    return Fault(rule=rule, patch=patch.name, where=where, what=what, next=next)


Rule = Callable[[Series], Iterable[Fault]]


def of_folders(series: Series) -> Iterator[Fault]:
    """The faults that need no checkout to be seen."""
    from dspatch.carry.lint import lintforms, linttemplates, lintwords

    for rule in (*lintwords.RULES, *linttemplates.RULES, *lintforms.RULES):
        yield from rule(series)
