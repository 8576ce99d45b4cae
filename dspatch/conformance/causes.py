"""Likely causes of a symptom, from diagnosis.toml, and what speaks for or against each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from dspatch.conformance.faults import FEATURES
from dspatch.conformance.report import CheckResult
from dspatch.errors import ConformanceError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import TomlFile, load

if TYPE_CHECKING:
    from dspatch.conformance.symptom import Symptom

Standing = Literal["confirmed", "open", "ruled out"]
# What a finding of the audit says of the engine's own source, and where; `None` where nobody asked.
Ask = Callable[[str], tuple[Standing, str]]
STANDINGS: tuple[Standing, ...] = ("confirmed", "open", "ruled out")
CONDITIONS = ("kind", "at", "rows", "run", "manner", "needs")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A cause as the file states it; an empty condition always holds."""

    text: str
    kind: tuple[str, ...] = ()
    at: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    manner: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    error: str = ""
    check: str = ""
    finding: str = ""
    how: str = ""

    @property
    def specific(self) -> int:
        """How many conditions it states."""
        return sum(bool(getattr(self, name)) for name in (*CONDITIONS, "error"))

    def fits(self, symptom: Symptom, config: Mapping[str, Any]) -> bool:
        """Whether every condition holds."""
        of = {
            "kind": symptom.kind,
            "at": symptom.operation,
            "rows": symptom.rows,
            "run": symptom.run,
            "manner": symptom.manner,
        }
        stated = ((getattr(self, name), value) for name, value in of.items())
        return (
            all(value in wanted for wanted, value in stated if wanted)
            and all(FEATURES[need](config) for need in self.needs)
            and (not self.error or re.search(self.error, symptom.detail) is not None)
        )


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """diagnosis.toml: operations in order, operations of tensors, causes."""

    places: Mapping[str, str]
    tensors: Mapping[str, str]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A likely cause: what would confirm it, and whether that has been seen already."""

    text: str
    confirm: str
    standing: Standing
    check: str = ""
    finding: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The cause as JSON values."""
        return asdict(self)


@cache
def knowledge() -> Knowledge:
    """What is known of places and causes. Raises `ConformanceError` with file and line."""
    file = load(PACKAGE / "conformance" / "diagnosis.toml", ConformanceError)
    file.check_keys(file.data, ("places", "tensors", "cause"))
    rules = tuple(_rule(file, entry) for entry in file.data["cause"])
    return Knowledge(places=file.data["places"], tensors=file.data["tensors"], rules=rules)


def _rule(file: TomlFile, entry: Mapping[str, Any]) -> Rule:
    file.check_keys(entry, (field.name for field in fields(Rule)), within="cause")
    lists = {name: tuple(entry[name]) for name in CONDITIONS if name in entry}
    return Rule(**{**entry, **lists})


def rank(
    symptom: Symptom, config: Mapping[str, Any], results: Sequence[CheckResult], ask: Ask
) -> tuple[Cause, ...]:
    """The causes that fit: confirmed ones first, then who states more, ruled out ones last."""
    fitting = [rule for rule in knowledge().rules if rule.fits(symptom, config)]
    fitting.sort(key=lambda rule: -rule.specific)
    found = [_cause(rule, {r.check: r for r in results}, ask) for rule in fitting]
    return tuple(sorted(found, key=lambda cause: STANDINGS.index(cause.standing)))


def _cause(rule: Rule, results: Mapping[str, CheckResult], ask: Ask) -> Cause:
    standing, confirm = _confirmed(rule, results, ask)
    return Cause(
        text=rule.text, confirm=confirm, standing=standing, check=rule.check, finding=rule.finding
    )


def _confirmed(rule: Rule, results: Mapping[str, CheckResult], ask: Ask) -> tuple[Standing, str]:
    if rule.check:
        status = results[rule.check].status if rule.check in results else "not-shown"
        standing: Standing = {"fail": "confirmed", "pass": "ruled out", "not-shown": "open"}[status]  # type: ignore[assignment]
        return standing, f"check {rule.check} ({status})"
    if rule.finding:
        standing, where = ask(rule.finding)
        told = f"audit finding {rule.finding}{f': {where}' if where else ''}"
        # A source without the finding may still do it another way, where `how` says how to see.
        if rule.how:
            return ("open" if standing == "ruled out" else standing), f"{rule.how}; {told}"
        return standing, told
    return "open", rule.how


def unasked(finding: str) -> tuple[Standing, str]:
    """The answer where no source is at hand: the command that would ask it."""
    return "open", f"dspatch audit --explain {finding}"
