"""DeepSeek on TurboMind, patched: the wheels of two generations convert it, quantised or not, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dspatch import index
from dspatch.carry.remote import releases
from dspatch.conformance import conversion, oracle, small
from dspatch.conformance.report import Report
from dspatch.console import Console
from dspatch.engines import silent, turbomind
from dspatch.stages import apply, build
from dspatch.stages.request import Request

pytestmark = pytest.mark.e2e

PLAIN, FP8, AWQ = (f"deepseek-v2-lite{form}" for form in ("", "/fp8-blocks", "/awq"))
ONE_GROUP = "deepseek-v3/one-group-fp8"
NUMBERS = tuple(conversion.MEASURED)
BLOCKS = {name for name, _, needs in conversion.FAULTS if "fp8-blocks" in needs}


def patched(rev: str) -> Path:
    """The patched wheel of a pin."""
    applied = apply.run(Request(engine="lmdeploy", rev=rev, target="cuda"), Console(as_json=True))
    return build.run(applied.job, Console(as_json=True)).path


def stock(rev: str) -> Path:
    """The wheel of a release as it was published."""
    release = releases.published("lmdeploy").release(rev)
    assert release is not None
    assert release.wheel is not None
    return index.download_listed("lmdeploy", release.wheel)


def said(report: Report, model: str, check: str) -> tuple[str, str]:
    """Status and note of the one result of a check on a model."""
    return next(
        (r.status, r.note) for r in report.results if (r.variant, r.check) == (model, check)
    )


def shown(report: Report, model: str) -> set[str]:
    """The status of everything that was to be measured on a model."""
    return {said(report, model, check)[0] for check in NUMBERS}


def proven(rev: str, models: Sequence[str], folder: Path) -> Report:
    """What the patched wheel of a pin makes of models, of which some may be refused."""
    return conversion.run(
        wheel=patched(rev), version=rev, out=folder, variants=models, progress=silent
    )


def test_turbomind_is_given_what_the_model_means_and_every_fault_shows(tmp_path: Path) -> None:
    done = conversion.selftest(
        wheel=patched("v0.18.0"), version="0.18.0", out=tmp_path, variants=[FP8], progress=silent
    )
    assert done.ok, done.clean.failures()
    assert shown(done.clean, FP8) == {"pass"}
    assert "FP8_E4M3" in said(done.clean, FP8, "conversion.done")[1]
    assert {one.outcome for one in done.planted} == {"caught"}
    assert {one.fault.name for one in done.planted} >= BLOCKS


@pytest.mark.parametrize(
    ("rev", "model", "given", "refused"),
    [
        (
            "v0.14.0",
            AWQ,
            "UINT4",
            {
                "deepseek-v2": "compiled for 160 experts in 8 groups, not 16 in 4",
                "deepseek-v3": "from 4 groups by noaux_tc",
            },
        ),
        (
            "v0.13.0",
            ONE_GROUP,
            "bfloat16, float32",
            {AWQ: "its attention is quantised by awq", "deepseek-v3": "TurboMind"},
        ),
    ],
)
def test_other_releases_convert_what_they_can_and_say_what_they_cannot(
    rev: str, model: str, given: str, refused: dict[str, str], tmp_path: Path
) -> None:
    report = proven(rev, [model, *refused], tmp_path)
    assert report.ok, report.failures()
    assert shown(report, model) == {"pass"}
    assert given in said(report, model, "conversion.done")[1]
    for other, reason in refused.items():
        status, note = said(report, other, "conversion.done")
        assert (status, reason in note) == ("not-shown", True), note


def test_stock_turbomind_neither_has_the_model_nor_says_that_another_engine_starts(
    tmp_path: Path,
) -> None:
    report = conversion.run(
        wheel=stock("v0.18.0"), version="0.18.0", out=tmp_path, variants=[PLAIN], progress=silent
    )
    assert said(report, PLAIN, "conversion.asked") == ("fail", "started: PytorchEngineConfig")
    assert said(report, PLAIN, "conversion.done")[0] == "fail"
    assert shown(report, PLAIN) == {"not-shown"}


@pytest.mark.parametrize("rev", ["v0.18.0", "v0.13.0"])
def test_heads_that_a_tp_does_not_divide_end_in_the_reason(rev: str, tmp_path: Path) -> None:
    known, judge = turbomind.release(rev), oracle.ensure()
    assert known is not None
    assert judge.environment is not None
    (golden,) = judge.golden([small.case(PLAIN)])
    python = turbomind.prepare(patched(rev), known, judge.environment, silent).python
    given = {PLAIN: golden.checkpoint.given}
    made = turbomind.convert(python, given, known, tmp_path, gpus=3)[PLAIN]
    assert "with tp=3: 4 attention heads cannot be shared out to 3 GPUs" in made.error
