"""What a check looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Prompts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One engine run on one small model, measured against the oracle.

    `facts` is what the engine said of itself, `measures` what the oracle's worker measured, and
    `run` names the run of each prompt alone: `alone/`, or the one under a planted fault.
    """

    variant: str
    dtype: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    measures: Mapping[str, Any]
    run: str = "alone/"

    @property
    def alone(self) -> Prompts:
        """Measures of each prompt run by itself."""
        return self.prompts(self.run)

    def prompts(self, run: str) -> Prompts:
        """Measures of each prompt in a run; empty when there was no such run."""
        found: Prompts = self.measures["runs"].get(run, {})
        return found


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check measured.

    `wrong` fails it whatever was measured; `unseen` says why it could not look.
    """

    measured: float | None = None
    note: str = ""
    wrong: bool = False
    unseen: str = ""


def unseen(why: str) -> Verdict:
    """The verdict of a check that could not look."""
    return Verdict(unseen=why)
