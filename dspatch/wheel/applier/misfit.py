"""The one error of a delta file: what does not fit, why, and what to do."""

from __future__ import annotations

MISFIT = 47
LOCKED = 37


class Misfit(Exception):
    """A delta cannot be applied or undone; nothing was written."""

    def __init__(self, what: str, why: str = "", next: str = "", code: int = MISFIT) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next
        self.code = code

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.next:
            lines.append(f"  next: {self.next}")
        return "\n".join(lines)
