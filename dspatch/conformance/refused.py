"""How an engine says that it cannot compute a model, as against failing at it; and what of that a report keeps."""

from __future__ import annotations

import re

from dspatch.conformance.report import CheckResult

# What a patched engine raises before it reads a weight: its conversion, and who was asked for TurboMind.
SAYS = re.compile(
    r"NotImplementedError: (?=TurboMind)|RuntimeError: (?=TurboMind was asked for and cannot)"
)
TOLD = "refused: "
# The checks whose result says so: of a conversion, and of a start.
WHERE = ("conversion.done", "engine.start")


def is_one(error: str) -> bool:
    """Whether an error is an engine's refusal."""
    return SAYS.match(error) is not None


def reason(result: CheckResult) -> str:
    """Why a release does not compute a model, where this is the result that says so; else empty."""
    said = result.check in WHERE and result.status == "not-shown"
    if not said or not result.note.startswith(TOLD):
        return ""
    return SAYS.sub("", result.note.removeprefix(TOLD), count=1).partition(". Ask for ")[0]
