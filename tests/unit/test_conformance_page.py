"""The page shows everything, needs nothing from elsewhere, and draws what was measured where it belongs."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.conformance import causes, charts, faults, page, render
from dspatch.conformance.diagnosis import Diagnosis
from dspatch.conformance.report import CheckResult, Curves, Report
from dspatch.conformance.selftest import Planted, Selftest
from dspatch.conformance.symptom import Symptom

VOID = {"meta", "br"}
DEPTHS = (("embed", 0.0), ("layer.0", 2e-13), ("layer.1", 0.02), ("logits", math.inf))
FOUND = Symptom(
    kind="run", layer=1, operation="rope", run="alone", prompt="long", rows="not-first",
    relative=0.27, position=1, columns=(2, 8), expected=("1.5",), got=("<2>",),
    unobserved=("1.kv_a_norm",),
)  # fmt: skip


def result(status: str, check: str = "golden.fp32", **more: object) -> CheckResult:
    fields = {"check": check, "variant": "deepseek-v3", "dtype": "float32", "status": status}
    return CheckResult(**{**fields, **more})  # type: ignore[arg-type]


def report() -> Report:
    likely = causes.rank(FOUND, {"rope_scaling": None}, (), causes.unasked)
    return Report(
        results=(
            result("pass", measured=1e-12, tolerance=1e-8),
            result("fail", "greedy.forced", measured=math.inf, note="<script>alert(1)</script>"),
            result("not-shown", "prefix.hit", note="turned off"),
        ),
        facts={"engine": "vllm", "seconds": {"deepseek-v3": 12.34}},
        diagnoses=(Diagnosis(variant="deepseek-v3", symptom=FOUND, causes=likely),),
        curves=(Curves(variant="deepseek-v3", depths=DEPTHS, logprob_errors=(1, *[0] * 20, 7)),),
    )


def selftest() -> Selftest:
    fault = faults.FAULTS[0]
    planted = Planted(fault=fault, variant="deepseek-v3", results=(result("fail"),))
    return Selftest(clean=report(), planted=(planted,))


class Reader(HTMLParser):
    """Reads a page: tags must close in order; texts and attributes are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page.as_html(report(), "an engine", selftest())
    reader = read(text)
    assert "script" not in reader.seen
    assert not {name for name, _ in reader.attributes} & {"src", "href", "srcset", "onload"}
    assert not re.search(r"url\(|@import|https?:", text)


def test_what_an_engine_said_is_text() -> None:
    reader = read(page.as_html(report(), "<b>an engine</b>"))
    assert "<script>alert(1)</script>" in reader.text
    assert "<b>an engine</b>" in reader.text
    assert "<2>" in reader.text


def test_every_result_diagnosis_and_fault_is_shown() -> None:
    text = read(page.as_html(report(), "an engine", selftest())).text
    for words in (
        "✗ 1 check failed", "golden.fp32", "10,000×", "turned off", "layer 1, rope", "Not observed",
        "1.kv_a_norm", "every position but the first", "seconds", "deepseek-v3 12.3", "Planted faults",
        faults.FAULTS[0].name, "vllm-cpu-rope-strides", "2 of 8 values",
    ):  # fmt: skip
        assert words in text, words
    assert "Planted faults" not in read(page.as_html(report(), "an engine")).text


def test_the_other_forms_hold_the_diagnosis_too() -> None:
    one = report()
    assert "layer 1, rope" in render.as_markdown(one)
    suite = ElementTree.fromstring(render.as_junit(one)).find("testsuite")
    assert suite is not None
    assert "expected 1.5" in (suite.findtext("system-out") or "")
    read_back = json.loads(render.as_json(one), parse_constant=pytest.fail)
    assert read_back["diagnoses"][0]["symptom"]["place"] == "1.rope"
    assert read_back["curves"][0]["depths"][-1] == ["logits", "inf"]


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ((result("pass"),), "✓ every check that could look passed"),
        ((result("not-shown"),), "✗ nothing was shown"),
    ],
)
def test_the_verdict_is_the_report_s(results: tuple[CheckResult, ...], verdict: str) -> None:
    plain = Report(results=results, facts={})
    assert verdict in read(page.as_html(plain, "an engine")).text


def test_the_signs_do_not_hang_on_colour() -> None:
    text = page.as_html(report(), "an engine")
    assert {sign for sign in page.SIGNS.values() if sign in text} == {"✓", "✗", "–"}
    assert text.count('class="off"') == 3  # squares and bars, where right ones are circles


@given(st.lists(st.floats(min_value=0, allow_nan=False), min_size=1, max_size=80))
def test_every_error_is_drawn_inside_and_on_its_side_of_the_band(errors: list[float]) -> None:
    chart = charts.depth([(f"layer.{n}", v) for n, v in enumerate(errors)], 1e-8, 1e-12)
    for mark, value in zip(chart.marks, errors, strict=True):
        assert charts.LEFT <= mark.x <= charts.WIDTH - charts.RIGHT
        assert charts.TOP - 1e-6 <= mark.y <= charts.HEIGHT - charts.BOTTOM + 1e-6
        assert mark.right == (value <= 1e-8)
        assert mark.y >= chart.band - 1e-6 if mark.right else mark.y <= chart.band + 1e-6


@given(st.lists(st.integers(min_value=0, max_value=10**9), min_size=22, max_size=22))
def test_every_bin_is_as_tall_as_its_count_and_one_is_seen(counts: list[int]) -> None:
    chart = charts.histogram(counts, 1e-3)
    foot = charts.HEIGHT - charts.BOTTOM
    for mark, count in zip(chart.marks, counts, strict=True):
        assert charts.TOP - 1e-6 <= mark.y <= foot
        assert (foot - mark.y > 1) == (count > 0)
        assert mark.right == (mark.x < chart.band - 1e-6)
    order = sorted(range(22), key=lambda n: counts[n])
    heights = [foot - chart.marks[n].y for n in order]
    assert heights == pytest.approx(sorted(heights))
    # A limit of the typical one says of none that it is wrong.
    assert all(mark.right for mark in charts.histogram(counts, 1e-3, of_all=False).marks)
