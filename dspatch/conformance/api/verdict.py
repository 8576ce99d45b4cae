"""What a check of a server says: shown, failed or not shown, on what evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dspatch.conformance.api.server import Server
from dspatch.conformance.report import CheckResult, Status


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`evidence` is what was looked at; `reason` why it failed or could not be shown."""

    status: Status
    evidence: str
    reason: str = ""


def not_shown(reason: str) -> Verdict:
    """The check could not look."""
    return Verdict(status="not-shown", evidence="", reason=reason)


@dataclass(kw_only=True)
class Looked:
    """What a check has compared so far, and what it found wrong."""

    what: str
    times: int = 0
    wrong: list[str] = field(default_factory=list)

    def at(self, fault: str, where: str = "") -> None:
        """Count one comparison; `fault` is empty when it held."""
        self.times += 1
        if fault:
            self.wrong.append(f"{where}: {fault}" if where else fault)

    def verdict(self, more: str = "") -> Verdict:
        """Pass when something was compared and nothing was wrong."""
        evidence = f"{self.times} {self.what}" + (f"; {more}" if more else "")
        if self.wrong:
            others = f" (and {len(self.wrong) - 3} more)" if len(self.wrong) > 3 else ""
            reason = "; ".join(self.wrong[:3]) + others
            return Verdict(status="fail", evidence=evidence, reason=reason)
        if not self.times:
            return not_shown(more or f"no {self.what} could be looked at")
        return Verdict(status="pass", evidence=evidence)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: its id, how it looks, and the most requests that this may take."""

    id: str
    look: Callable[[Server], Verdict]
    requests: int

    @property
    def what(self) -> str:
        """The rule that it checks: the first line of its function's docstring."""
        return (self.look.__doc__ or "").partition("\n")[0].rstrip(".")


@dataclass(frozen=True, kw_only=True)
class ApiResult(CheckResult):
    """The result of a check of a server; `note` is the reason, or the evidence of a pass."""

    what: str = ""
    evidence: str = ""


def row(check: str, what: str, model: str, verdict: Verdict) -> ApiResult:
    """The verdict of a check, which holds the rule `what`, as a row of the report."""
    return ApiResult(
        check=check,
        variant=model,
        dtype="api",
        status=verdict.status,
        note=verdict.reason or verdict.evidence,
        what=what,
        evidence=verdict.evidence,
    )
