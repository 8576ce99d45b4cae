"""A report as rows for the terminal, JSON, Markdown and JUnit XML; its files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from dspatch import markdown
from dspatch.conformance.report import CheckResult, Report

if TYPE_CHECKING:
    from dspatch.conformance.selftest import Selftest

HEADERS = ("model", "check", "dtype", "status", "measured", "tolerance", "margin", "note")
# What the summary shows of each model, a column each.
SHOWN = {"golden.fp32": "LOGITS OFF BY", "decode.paged": "DECODE OFF BY, NATS"}
COLUMNS = ("MODEL", "CHECKS", *SHOWN.values(), "TIGHTEST MARGIN")
STATUSES = ("pass", "fail", "not-shown")
FILES = ("report.json", "report.md", "report.xml", "report.html")


def as_json(report: Report) -> str:
    """The report as one JSON object."""
    return json.dumps(report.as_dict(), indent=2, sort_keys=True, allow_nan=False) + "\n"


def facts(report: Report) -> list[tuple[str, str]]:
    """What a report says of the engine and of its run, in words."""
    return [(key, _fact(value)) for key, value in report.facts.items()]


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_fact(one)}" for key, one in value.items())
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def as_markdown(report: Report, selftest: Selftest | None = None) -> str:
    """The report as a Markdown table under one line with the counts; then diagnoses and faults."""
    lines = [f"# Conformance: {report.summary}", ""]
    lines += [f"* {key}: {value}" for key, value in facts(report)]
    lines += ["", *markdown.table(HEADERS, [_cells(result) for result in report.results])]
    if report.diagnoses:
        told = [line for each in report.diagnoses for line in ("", *each.lines())]
        lines += ["", "## Where it diverges", "", "```text", *told[1:], "```"]
    if selftest is not None:
        lines += ["", "## Planted faults", "", *_matrix(selftest)]
    return "\n".join(lines) + "\n"


def _matrix(selftest: Selftest) -> Iterator[str]:
    """Fault × check, with other projects' rules on the same runs, and how many each caught."""
    from dspatch.conformance.selftest import RULES, caught, columns, passes

    checks = columns(selftest)
    headers = ["fault", "model", *checks, *RULES.values(), "outcome", "found at"]
    marks = {"fail": "caught", "pass": "·", "not-shown": "–"}
    rows = []
    for one in selftest.planted:
        status = {result.check: marks[result.status] for result in one.results}
        own = [status.get(check, "") for check in checks]
        theirs = [passes(one, rule) for rule in RULES]
        end = [f"{one.outcome} {one.refused}".strip(), one.found_at]
        rows.append([one.fault.name, one.variant, *own, *theirs, *end])
    yield from markdown.table(headers, rows)
    yield ""
    yield f"Caught, of the faults that were planted in a run: {caught(selftest)}."


def as_junit(report: Report) -> str:
    """The report as JUnit XML, one suite a model, its diagnosis as output; not shown is skipped."""
    root = ElementTree.Element("testsuites", name="dspatch conformance")
    for variant in report.variants:
        chosen = report.on(variant)
        suite = ElementTree.SubElement(root, "testsuite", name=variant, tests=str(len(chosen)))
        suite.set("failures", str(sum(result.status == "fail" for result in chosen)))
        suite.set("skipped", str(sum(result.status == "not-shown" for result in chosen)))
        for result in chosen:
            _junit_case(suite, result)
        told = [
            line for each in report.diagnoses if each.variant == variant for line in each.lines()
        ]
        if told:
            ElementTree.SubElement(suite, "system-out").text = "\n".join(told)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _junit_case(suite: ElementTree.Element, result: CheckResult) -> None:
    name = f"{result.check} ({result.dtype})"
    case = ElementTree.SubElement(suite, "testcase", classname=result.variant, name=name)
    if result.status != "pass":
        kind = "failure" if result.status == "fail" else "skipped"
        ElementTree.SubElement(case, kind, message=result.note or measured(result))


def summary(report: Report) -> list[tuple[str, ...]]:
    """A row a model: what passed, how far logits and decode are off, the tightest margin."""
    rows = []
    for variant in report.variants:
        chosen = report.on(variant)
        counts = ((status, sum(r.status == status for r in chosen)) for status in STATUSES)
        told = ", ".join(f"{count} {status}" for status, count in counts if count)
        rows.append((variant, told, *_key_measures(chosen), _tightest(chosen)))
    return rows


def remarks(report: Report) -> list[str]:
    """What did not pass, one line for all checks and models that say the same."""
    models: dict[tuple[str, str, str], list[str]] = {}
    for result in report.results:
        if result.status != "pass":
            models.setdefault((result.status, result.check, result.note), []).append(result.variant)
    checks: dict[tuple[str, str, str], list[str]] = {}
    for (status, check, note), names in models.items():
        checks.setdefault((status, note, ", ".join(names)), []).append(check)
    return [
        f"{status} {', '.join(named)}: {note} ({names})"
        for (status, note, names), named in checks.items()
    ]


def _key_measures(results: Sequence[CheckResult]) -> list[str]:
    found = {result.check: result for result in results}
    return [number(found[check].measured) if check in found else "" for check in SHOWN]


def _tightest(results: Sequence[CheckResult]) -> str:
    margins = [(result.margin, result.check) for result in results if result.margin is not None]
    if not margins:
        return ""
    margin, check = min(margins)
    return f"{margin:.3g}x {check}"


def write(
    report: Report, folder: Path, *, name: str = "", selftest: Selftest | None = None
) -> list[Path]:
    """Write report.json, report.md, report.xml (JUnit) and report.html into a folder."""
    from dspatch.conformance.page import as_html

    folder.mkdir(parents=True, exist_ok=True)
    written = (as_json(report), as_markdown(report, selftest), as_junit(report))
    texts = dict(zip(FILES, (*written, as_html(report, name, selftest)), strict=True))
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def _cells(result: CheckResult) -> list[str]:
    margin = "" if result.margin is None else f"{result.margin:.3g}x"
    limit = number(result.tolerance)
    shown = [
        result.variant,
        result.check,
        result.dtype,
        result.status,
        measured(result),
        limit,
        margin,
    ]
    return [*shown, result.note]


def measured(result: CheckResult) -> str:
    """What was measured, with its unit."""
    told = number(result.measured)
    return f"{told} {result.unit}" if told and result.unit else told


def number(value: float | None) -> str:
    """A number as people write it: whole, or with two digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2g}"
