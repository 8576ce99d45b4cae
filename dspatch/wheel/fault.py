"""What a check finds: a member that is not what it should be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A member that is not what it should be."""

    member: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.member}: expected {self.expected}, got {self.got}"


def listed(values: Iterable[str]) -> str:
    """Values in order, for a fault's expected or got."""
    return ", ".join(sorted(values)) or "nothing"
