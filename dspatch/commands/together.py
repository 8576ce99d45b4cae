"""Options that do not go together, or say nothing without another: refused where one would be ignored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from click.core import ParameterSource

# An option, those that do not go with it, and what is told.
Apart = tuple[str, Sequence[str], str]
# An option, one that it needs, and what is told.
Needed = tuple[str, str, str]


def typed(names: Sequence[str]) -> list[str]:
    """Those of the options that stand on the command line."""
    context = click.get_current_context()
    return [n for n in names if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]


def refuse(names: Sequence[str], why: str) -> None:
    """Raise a usage error that begins with the first of the options that was typed; none for none."""
    if wrong := typed(names):
        flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
        raise click.UsageError(f"{flags[wrong[0]]} {why}")


def check(apart: Iterable[Apart], needed: Iterable[Needed] = ()) -> None:
    """Raise a usage error for options of which one says nothing, or another thing, beside the other."""
    for one, others, why in apart:
        if typed([one]) and typed(others):
            raise click.UsageError(why)
    for one, other, why in needed:
        if typed([one]) and not typed([other]):
            raise click.UsageError(why)
