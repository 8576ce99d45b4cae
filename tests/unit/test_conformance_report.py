"""The report says the same in every form, and never hides what was not shown."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dspatch.conformance import render
from dspatch.conformance.report import CheckResult, Report, Status


def result(status: Status = "pass", **changes: object) -> CheckResult:
    fields: dict[str, object] = {
        "check": "golden.fp32",
        "variant": "deepseek-v3",
        "dtype": "float32",
    }
    return CheckResult(**{**fields, "status": status, **changes})  # type: ignore[arg-type]


def report(*results: CheckResult) -> Report:
    return Report(results=results, facts={"engine": "vllm"})


def test_a_report_is_green_only_without_failures() -> None:
    assert report(result()).ok
    assert not report(result(), result("fail")).ok


def test_a_report_that_shows_nothing_is_not_green() -> None:
    assert not report().ok
    assert not report(result("not-shown")).ok


def test_an_engine_that_starts_has_computed_nothing_yet() -> None:
    before = [result(check=name) for name in ("checkpoint.whole", "engine.start", "oracle.sane")]
    assert not report(*before, result("not-shown")).ok
    assert report(*before, result()).ok


def test_what_was_not_shown_is_counted() -> None:
    summary = report(result(), result("not-shown"), result("fail")).summary
    assert summary == "1 passed, 1 failed, 1 not shown"


def test_the_margin_is_how_often_the_measure_fits_into_the_limit() -> None:
    assert result(measured=1e-12, tolerance=1e-8).margin == pytest.approx(1e4)
    assert result(measured=0.0, tolerance=1e-8).margin is None
    assert result(measured=3.0, tolerance=0.0).margin is None


def test_json_has_no_infinity() -> None:
    text = render.as_json(report(result("fail", measured=float("inf"), tolerance=1e-8)))
    read = json.loads(text, parse_constant=pytest.fail)
    assert read["results"][0]["measured"] == "inf"
    assert read["ok"] is False


def test_nan_is_written_as_text_too() -> None:
    assert result(measured=float("nan"), tolerance=1.0).as_dict()["measured"] == "nan"


def test_markdown_keeps_one_row_a_check_whatever_the_note_holds() -> None:
    text = render.as_markdown(report(result(note="a | b\nc"), result()))
    rows = [line for line in text.splitlines() if line.startswith("| deepseek")]
    assert len(rows) == 2
    assert "a \\| b c" in rows[0]


def test_junit_has_one_suite_a_model_and_skips_what_was_not_shown() -> None:
    text = render.as_junit(
        report(
            result(),
            result("fail", check="greedy.forced", note="3 missed <&>"),
            result("not-shown", variant="deepseek-v2", note="no cache"),
        )
    )
    suites = ElementTree.fromstring(text).findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["deepseek-v3", "deepseek-v2"]
    assert [suite.get("failures") for suite in suites] == ["1", "0"]
    failure = suites[0].find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "3 missed <&>"
    skipped = suites[1].find("testcase/skipped")
    assert skipped is not None
    assert skipped.get("message") == "no cache"


def test_the_summary_has_a_row_a_model_and_says_what_did_not_pass() -> None:
    shown = report(result(), result("fail"), result("not-shown"), result("not-shown"))
    rows = render.summary(shown)
    assert len(rows) == len(shown.variants)
    assert all(len(row) == len(render.COLUMNS) for row in rows)
    assert "1 pass, 1 fail, 2 not-shown" in rows[0]
    told = render.remarks(shown)
    assert [line.split()[0] for line in told] == ["fail", "not-shown"]


def test_all_files_are_written(tmp_path: Path) -> None:
    written = render.write(report(result()), tmp_path / "new")
    assert sorted(path.name for path in written) == sorted(render.FILES)
    assert all(path.read_text() for path in written)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0.0, "0"), (3.0, "3"), (1e-12, "1e-12"), (float("inf"), "inf")],
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    assert render.number(value) == shown
