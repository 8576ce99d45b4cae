"""A report as one HTML page that needs nothing else: light, dark, on paper, on a telephone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch.conformance import charts, diagnosis, render, statistic, tolerance
from dspatch.conformance.charts import Chart
from dspatch.conformance.report import CheckResult, Curves, Report

if TYPE_CHECKING:
    from jinja2 import Template

    from dspatch.conformance.selftest import Selftest

FOLDER = Path(__file__).parent
SIGNS = {"pass": "✓", "fail": "✗", "not-shown": "–"}
CAUGHT = {"fail": "✗", "pass": "·", "not-shown": "–"}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The two charts of a model."""

    variant: str
    depth: Chart
    histogram: Chart | None
    worst: str
    right: bool


def as_html(report: Report, name: str, selftest: Selftest | None = None) -> str:
    """The page of a report on what `name` says."""
    named = dict.fromkeys(result.check for result in report.results)
    # What the engine itself did comes first, also where only some models have it.
    checks = sorted(named, key=lambda check: not check.startswith("engine."))
    return _template().render(
        name=name,
        report=report,
        checks=checks,
        cells={(r.check, r.variant): _cell(r) for r in report.results},
        models=[_model(report, variant) for variant in report.variants],
        rows={variant: report.on(variant) for variant in report.variants},
        times=_times,
        number=render.number,
        measured=render.measured,
        signs=SIGNS,
        diagnoses=report.diagnoses,
        where=diagnosis.where,
        manner=diagnosis.manner,
        drawn=[one for curves in report.curves if (one := _drawn(report, curves))],
        tolerances=_tolerances(report, checks),
        facts=render.facts(report),
        matrix=_matrix(selftest) if selftest else None,
        chart=charts,
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # One template, escaped throughout: notes hold whatever an engine said.
    loader = FileSystemLoader(FOLDER)
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _cell(result: CheckResult) -> dict[str, str]:
    margin = result.margin
    exact = "exact" if result.measured == 0 else ""
    words = {"pass": _times(margin) if margin else exact, "fail": "fails", "not-shown": ""}
    return {
        "status": result.status,
        "sign": SIGNS[result.status],
        "text": words[result.status],
        "title": f"{result.check}, {result.variant}: {render.measured(result)} {result.note}".strip(),
    }


def _times(margin: float) -> str:
    """A margin with two digits, as people write it: 1.3×, 290×, 15,000×."""
    return f"{float(f'{margin:.2g}'):,.0f}×" if margin >= 10 else f"{margin:.2g}×"


def _model(report: Report, variant: str) -> dict[str, Any]:
    chosen = report.on(variant)
    counts = {status: sum(r.status == status for r in chosen) for status in render.STATUSES}
    margins = [(r.margin, r.check) for r in chosen if r.margin is not None and r.status == "pass"]
    margin, check = min(margins, default=(None, ""))
    return {
        "name": variant,
        "status": "fail" if counts["fail"] else "pass" if counts["pass"] else "not-shown",
        "counts": counts,
        "tightest": f"{_times(margin)} {check}" if margin else "",
    }


def _drawn(report: Report, curves: Curves) -> Drawn | None:
    """The charts of a model; none where no tolerance says what is right."""
    dtype, device = report.on(curves.variant)[0].dtype, report.facts.get("device", "cpu")
    golden, nats = (
        tolerance.find(check, dtype, device) for check in ("golden.fp32", "decode.paged")
    )
    if golden is None or nats is None:
        return None
    counts, of_all = curves.logprob_errors, not statistic.narrow("decode.paged", dtype)
    depth = charts.depth(curves.depths, golden.limit, golden.noise)
    worst = max(curves.depths, key=lambda one: one[1], default=("", 0.0))
    return Drawn(
        variant=curves.variant,
        depth=depth,
        histogram=charts.histogram(counts, nats.limit, of_all=of_all) if counts else None,
        worst=f"{worst[1]:.2g} at {worst[0]}",
        right=all(mark.right for mark in depth.marks),
    )


def _tolerances(report: Report, checks: Iterable[str]) -> list[dict[str, Any]]:
    dtypes = {result.dtype for result in report.results}
    device = report.facts.get("device", "cpu")
    return [
        {"check": check, "dtype": dtype, "of": row}
        for check in checks
        for dtype in sorted(dtypes)
        if (row := tolerance.row(check, dtype, device)) is not None
    ]


def _matrix(selftest: Selftest) -> dict[str, Any]:
    from dspatch.conformance.selftest import RULES, caught, columns, passes

    checks = columns(selftest)
    rows = []
    for one in selftest.planted:
        status = {result.check: result.status for result in one.results}
        rows.append(
            {
                "variant": one.variant,
                "fault": one.fault.name,
                "named": one.fault.caught_by,
                "outcome": one.outcome,
                "refused": one.refused,
                "cells": {
                    check: (status.get(check, ""), CAUGHT.get(status.get(check, ""), ""))
                    for check in checks
                },
                "rules": [passes(one, rule) for rule in RULES],
                "at": one.found_at,
                "misplaced": one.misplaced,
            }
        )
    outcomes = [row["outcome"] for row in rows]
    counts = {word: outcomes.count(word) for word in ("caught", "missed", "not-shown")}
    models = dict.fromkeys(row["variant"] for row in rows)
    return {
        "checks": checks,
        "rules": list(RULES.values()),
        "models": {name: [row for row in rows if row["variant"] == name] for name in models},
        "counts": counts,
        "power": caught(selftest),
    }
