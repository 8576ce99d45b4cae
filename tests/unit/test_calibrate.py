"""A tolerance lies between noise and weakest fault, or there is none; and what was seen stays seen."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import errors
from dspatch.bench import limits, noise, tolerancefile
from dspatch.bench.noise import Band, Seen
from dspatch.cli import main
from dspatch.conformance import checks, tolerance
from dspatch.conformance.checks.seen import Seen as SeenRun
from dspatch.conformance.faults import FAULTS
from dspatch.conformance.report import CheckResult, Report
from dspatch.conformance.selftest import Planted, Selftest
from dspatch.conformance.tolerance import Tolerance
from dspatch.console import Console
from dspatch.stages import calibrate, prove_any, show_calibrate
from tests.unit.test_prove_any import subject

KNOWN = tolerance.read(tolerance.shipped())
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
GOLDEN = ("golden.fp32", "float32", "cpu")


def band(low: float, fault: float | None, check: str = "golden.fp32", dtype: str = "half") -> Band:
    return Band(key=(check, dtype, "cpu"), noise=low, noise_at="here", fault=fault)


def row(one: Band, known: Any = KNOWN) -> limits.Row:
    found = limits.row(one, known, of="vllm 1.0", date="2026-11-30")
    assert found is not None
    return found


@given(st.just(0.0) | st.floats(1e-30, 1e6), st.floats(1e-12, 1e6))
def test_a_tolerance_lies_between_or_there_is_none(low: float, fault: float) -> None:
    new = row(band(low, fault)).new
    if new.value is None:
        assert fault <= low * limits.CLOSE
        return
    assert low <= new.value < fault
    assert new.noise >= low * (1 - 1e-12)
    assert new.fault <= fault * (1 + 1e-12)


def test_a_tolerance_with_room_on_both_sides_stands() -> None:
    stands = row(band(3e-12, 1e-3, dtype="float32"))
    assert stands.verdict == "stands"
    assert stands.new.value == KNOWN[GOLDEN].value
    assert stands.new.reason == KNOWN[GOLDEN].reason
    # A louder engine, or a weaker fault, moves it; a quieter one does not narrow what was seen.
    assert row(band(1e-6, 1e-3, dtype="float32")).verdict == "changed"
    quiet = row(band(0.0, 1.0, dtype="float32")).new
    assert (quiet.noise, quiet.fault) == (KNOWN[GOLDEN].noise, KNOWN[GOLDEN].fault)


def test_noise_that_reaches_the_faults_leaves_no_tolerance() -> None:
    for low, fault in ((1.2e-2, 1.6e-2), (math.inf, 1.0), (1.0, 0.0)):
        none = row(band(low, fault))
        assert none.verdict == "decides nothing"
        assert "too close" in none.new.reason


@pytest.mark.parametrize(
    ("low", "fault", "value", "reason"),
    [
        (1e-12, 1e-3, 1e-8, KNOWN[GOLDEN].reason),  # float32's stands, with its reason
        (1e-6, 1e-4, 1e-5, "the geometric mean of noise and weakest fault; vllm 1.0"),
        (0.0, 1e-8, 1e-9, "a tenth of the weakest fault, as there was no noise; vllm 1.0"),
        (1e-4, math.inf, 1e-3, "ten times the noise, as no fault was finite; vllm 1.0"),
    ],
)
def test_a_reason_says_how_the_tolerance_was_made(
    low: float, fault: float, value: float, reason: str
) -> None:
    new = row(band(low, fault)).new
    assert (new.value, new.reason) == (value, reason)


def test_exact_checks_stay_exact_and_sizes_follow_the_dtype() -> None:
    assert row(band(0, 2, check="weights.values")).new.value == 0
    of_float32 = {key: one for key, one in KNOWN.items() if key[1] == "float32"}
    latent = row(band(0, None, check="cache.latent", dtype="bfloat16"), of_float32)
    assert (latent.new.value, latent.new.fault) == (0, 4200)
    assert limits.row(band(0, None, check="no.such"), KNOWN, of="", date="") is None


def number(measured: float, fault: str = "", check: str = "golden.fp32") -> Seen:
    return Seen(check=check, dtype="half", device="cpu", measured=measured, where="e", fault=fault)


def test_the_loudest_noise_and_the_weakest_fault_make_the_band() -> None:
    rows = [number(1), number(3), number(2), number(9, "a"), number(7, "b"), number(8, "a")]
    (found,) = noise.bands(rows).values()
    assert (found.noise, found.fault, found.fault_at) == (3, 7, "b: e")
    # What is no number counts against the check, on whichever side it stands.
    (broken,) = noise.bands([*rows, number(math.nan), number(math.nan, "c")]).values()
    assert (broken.noise, broken.fault) == (math.inf, 0.0)
    assert noise.bands([number(7, "b")]) == {}


def result(check: str, measured: float | None, **changes: Any) -> CheckResult:
    given: dict[str, Any] = {"variant": "m", "dtype": "half", "status": "fail", **changes}
    return CheckResult(check=check, measured=measured, **given)


def planted(*clean: CheckResult) -> Selftest:
    fault = next(each for each in FAULTS if each.caught_by == "golden.fp32")
    under = (result("golden.fp32", 0.5), result("greedy.forced", 0.001))
    report = Report(results=clean, facts={"device": "cpu"})
    return Selftest(clean=report, planted=(Planted(fault=fault, variant="m", results=under),))


def test_only_the_check_that_must_catch_a_fault_is_measured_by_it() -> None:
    one = planted(result("golden.fp32", 0.01), result("prefix.hit", None))
    assert [(s.check, s.measured) for s in noise.of_clean(one.clean, "e")] == [
        ("golden.fp32", 0.01)
    ]
    assert [(s.check, s.measured) for s in noise.of_faults(one, "e")] == [("golden.fp32", 0.5)]


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(sorted(checks.CHECKS)),
            st.sampled_from(["float32", "bfloat16"]),
            st.sampled_from(["cpu", "cuda"]),
        ),
        st.builds(
            Tolerance,
            value=st.none() | st.floats(0, 1e9),
            unit=TEXT,
            noise=st.floats(0, 1e9),
            fault=st.floats(0, 1e9) | st.just(math.inf),
            reason=TEXT,
            date=st.just("2026-11-30"),
        ),
        max_size=6,
    )
)
def test_what_is_written_is_read_again(rows: Any) -> None:
    read: Any = tomllib.loads(tolerancefile.text(rows))
    assert {(c, t, d) for c in read for t in read[c] for d in read[c][t]} == set(rows)
    for (check, dtype, device), one in rows.items():
        entry = read[check][dtype][device]
        assert ("value" in entry) == (one.value is not None)
        assert (entry["unit"], entry["reason"]) == (one.unit, one.reason)
        assert entry["noise"] == pytest.approx(one.noise, rel=0.06)


def run(dtype: str, device: str = "cpu") -> SeenRun:
    measures = {"sane": {"eager": 1e-13}, "runs": {}, "weights": {}}
    config = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    return SeenRun(variant="m", dtype=dtype, device=device, config=config, facts={}, measures=measures)  # fmt: skip


@pytest.mark.parametrize(("dtype", "device"), [("float8", "cpu"), ("float32", "cuda")])
def test_what_nobody_measured_fails_and_says_so(dtype: str, device: str) -> None:
    (told,) = checks.judge(run(dtype, device), ["oracle.sane"])
    assert (told.status, told.measured) == ("fail", 1e-13)
    assert told.note == f"tolerance.toml has no tolerance for oracle.sane in {dtype} on {device}"


def test_where_noise_reaches_the_faults_a_check_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    none = Tolerance(value=None, unit="u", noise=0.5, fault=0.6, reason="r", date="2026-11-30")
    tolerancefile.write(path, {("oracle.sane", "half", "cpu"): none})
    monkeypatch.setenv("DSPATCH_TOLERANCES", str(path))
    (told,) = checks.judge(run("half"), ["oracle.sane"])
    assert told.status == "not-shown"
    assert "decides nothing: noise reaches 0.5 u, the weakest fault 0.6" in told.note


def test_an_engine_that_is_not_sound_makes_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dspatch.conformance import selftest, suite

    bad = planted(result("golden.fp32", 0.7, note="first outside the band"))
    good = planted(result("golden.fp32", 0.01, status="pass"))
    monkeypatch.setattr(suite, "run", lambda **given: bad.clean)
    monkeypatch.setattr(selftest, "run", lambda **given: bad)
    monkeypatch.setattr(prove_any, "need_machine", lambda subject: None)
    file = tmp_path / "tolerance.toml"
    for dtypes in (("float32",), ("half",)):
        with pytest.raises(errors.CalibrationError, match="is not sound"):
            calibrate.run([subject()], calibrate.Wanted(dtypes=dtypes), file, Console())
    assert not file.exists()
    monkeypatch.setattr(suite, "run", lambda **given: good.clean)
    stopped = planted(result("engine.start", None, note="no such dtype"))
    monkeypatch.setattr(selftest, "run", lambda **given: stopped)
    with pytest.raises(errors.CalibrationError, match="did not run m in half"):
        calibrate.run([subject()], calibrate.Wanted(dtypes=("half",)), file, Console())


def test_a_sound_engine_gives_rows_and_those_of_other_dtypes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dspatch.conformance import selftest, suite

    good = planted(result("golden.fp32", 0.01, status="pass"))
    monkeypatch.setattr(suite, "run", lambda **given: good.clean)
    monkeypatch.setattr(selftest, "run", lambda **given: good)
    monkeypatch.setattr(prove_any, "need_machine", lambda subject: None)
    file = tmp_path / "tolerance.toml"
    done = calibrate.run([subject()], calibrate.Wanted(dtypes=("half",)), file, Console())
    show_calibrate.written(done, Console())
    out = capsys.readouterr().out
    assert "golden.fp32" in out
    assert "0.071" in out
    rows = tolerance.read(file)
    assert rows[GOLDEN] == KNOWN[GOLDEN]
    assert rows["golden.fp32", "half", "cpu"].value == 0.071
    show_calibrate.written(done, Console(as_json=True))


def test_noise_without_bounds_is_text_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (row(band(math.inf, math.inf)),)
    done = calibrate.Calibrated(rows=rows, file=tmp_path / "t.toml", engines=("vllm 1.0",))
    show_calibrate.written(done, Console(as_json=True))
    (told,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rows"]
    assert (told["noise"], told["measured"]["fault"], told["value"]) == ("inf", "inf", None)


def test_the_table_that_ships_is_written_to_the_same_bytes() -> None:
    # Also the rows of a conversion, which calibrate never measures.
    assert tolerancefile.text(KNOWN) == tolerance.shipped().read_text()


def test_an_engine_must_be_named() -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "calibrate"])
    assert stop.value.code == 2


def test_an_engine_that_is_seen_by_its_answers_sets_no_limits(tmp_path: Path) -> None:
    of = replace(subject(), engine="lmdeploy")
    with pytest.raises(errors.CalibrationError, match="lmdeploy"):
        calibrate.run([of], calibrate.Wanted(), tmp_path / "t.toml", Console())
