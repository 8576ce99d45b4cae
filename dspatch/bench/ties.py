"""Prompts on which a router nearly ties are drawn again: what rounding chooses there says nothing of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dspatch.engines import Progress, silent

if TYPE_CHECKING:
    from dspatch.conformance.oracle import Oracle
    from dspatch.conformance.small import Case

# Of a score. Of some 500 sets the oracle's rounding in float32 turned two, at margins of 8e-8 and, `/quiet`, 4e-7.
NEAR = 1e-6
TURNS = 5  # draws; a model that ties on all of them is left to the oracle's own controls
FURTHER = 10**6  # from a seed of prompts to the next one that nothing else uses


def settled(cases: Sequence[Case], oracle: Oracle, progress: Progress = silent) -> list[Case]:
    """The cases, each with the first prompts of its seeds on which no router ties; errors as of `Oracle.golden`."""
    *_, last = _rounds(cases, oracle, progress)
    return last


def every(cases: Sequence[Case], oracle: Oracle, progress: Progress = silent) -> list[Case]:
    """The cases as they were drawn, and all that were drawn instead: what another machine needs for the same."""
    rounds = _rounds(cases, oracle, progress)
    return list({(one.name, one.dice): one for drawn in rounds for one in drawn}.values())


def again(first: Sequence[Case], last: Sequence[Case]) -> int:
    """How many of the cases have other prompts than they were drawn with."""
    return sum(a.dice != b.dice for a, b in zip(first, last, strict=True))


def _rounds(cases: Sequence[Case], oracle: Oracle, progress: Progress) -> Iterator[list[Case]]:
    drawn = list(cases)
    yield list(drawn)
    fresh = list(range(len(drawn)))
    for _ in range(TURNS):
        margins = oracle.margins(oracle.golden([drawn[at] for at in fresh], progress))
        fresh = [at for at, margin in zip(fresh, margins, strict=True) if margin < NEAR]
        if not fresh:
            return
        for at in fresh:
            drawn[at] = replace(drawn[at], dice=(drawn[at].dice or 0) + FURTHER)
        yield list(drawn)
