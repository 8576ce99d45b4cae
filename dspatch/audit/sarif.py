"""An audit as SARIF 2.1.0, which code scanning and editors read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspatch import __version__
from dspatch.audit.answer import Evidence
from dspatch.audit.finding import Finding, Severity

if TYPE_CHECKING:
    from dspatch.stages.audit import Audited, Found

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LEVELS: dict[Severity, str] = {
    "wrong": "error", "crash": "error", "slow": "warning", "missing": "warning",
    "misleading": "note",
}  # fmt: skip
_BASE = "ENGINE"  # the folder that the paths of evidence are relative to


def log(done: Audited) -> dict[str, Any]:
    """The log of one audit; a finding that cannot be told is an `open` result, never left out."""
    found = [*done.has, *done.unknown]
    rules = [each.finding for each in found]
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "dspatch audit",
                "semanticVersion": __version__.partition("+")[0],
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "originalUriBaseIds": {
            _BASE: {"description": {"text": f"{done.engine} {done.version or ''}: {done.origin}"}}
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, index) for index, each in enumerate(found)],
        "properties": {
            "engine": done.engine, "version": done.version, "models": list(done.models),
            "target": done.target, "card": done.card, "clean": list(done.clean),
        },
    }  # fmt: skip
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(finding: Finding) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": finding.id,
        "shortDescription": {"text": finding.title},
        "fullDescription": {"text": finding.what},
        "defaultConfiguration": {"level": LEVELS[finding.severity]},
        "properties": {"severity": finding.severity, "tags": [finding.severity, finding.engine]},
    }
    helped = [f"Patch: {finding.fix}."] if finding.fix else []
    helped += [f"Workaround: {finding.workaround}."] if finding.workaround else []
    helped += [f"Upstream: {link}" for link in finding.references]
    if helped:
        rule["help"] = {"text": "\n".join(helped)}
    if finding.references:
        rule["helpUri"] = finding.references[0]
    return rule


def _result(found: Found, index: int) -> dict[str, Any]:
    decided = found.answer.state == "yes"
    text = found.finding.title + (f" (when: {'; '.join(found.when)})" if found.when else "")
    if not decided:
        text += f" cannot be told: {'; '.join(found.answer.why)}"
    result: dict[str, Any] = {
        "ruleId": found.finding.id,
        "ruleIndex": index,
        "kind": "fail" if decided else "open",
        "level": LEVELS[found.finding.severity] if decided else "none",
        "message": {"text": text},
        "partialFingerprints": {"finding/v1": found.finding.id},
        "properties": {
            "severity": found.finding.severity, "firstGood": found.first_good,
            "command": found.command, "models": list(found.models),
        },
    }  # fmt: skip
    places = _locations(found.answer.evidence)
    if places:
        result["locations"] = places[:1]
        if places[1:]:
            result["relatedLocations"] = places[1:]
    return result


def _locations(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    return [_location(place) for place in evidence if place.file]


def _location(place: Evidence) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": place.file, "uriBaseId": _BASE}}
    if place.line:
        physical["region"] = {"startLine": place.line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.symbol:
        location["logicalLocations"] = [{"fullyQualifiedName": place.symbol}]
    if place.text:
        location["message"] = {"text": place.text}
    return location
