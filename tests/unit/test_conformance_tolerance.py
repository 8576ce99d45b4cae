"""Every limit lies between what was measured without a fault and with one."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dspatch.bench import limits, tolerancefile
from dspatch.conformance import checks, conversion, diagnosis, statistic, tolerance
from dspatch.errors import ConformanceError


def test_every_check_has_a_limit_and_every_limit_a_check() -> None:
    known = {*checks.CHECKS, *conversion.MEASURED}
    assert {check for check, _, _ in tolerance.table()} == known
    # No kernel here multiplies quantised weights in float32.
    assert all(
        (check, "bfloat16" if check.endswith(".quantised") else "float32", "cpu")
        in tolerance.table()
        for check in known
    )


@pytest.mark.parametrize("key", sorted(tolerance.table()))
def test_a_limit_lies_between_noise_and_fault(key: tuple[str, str, str]) -> None:
    row = tolerance.table()[key]
    assert row.reason
    assert row.unit
    if row.value is None:
        assert row.fault <= limits.CLOSE * row.noise
        assert tolerance.find(*key) is None
        return
    assert row.noise <= row.value < row.fault
    room = 10 if key[1] == "float32" else limits.CLOSE**0.5 * 0.95
    if row.noise:
        assert row.value >= room * row.noise
        assert row.fault >= room * row.value


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_check_of_unquantised_models_decides_in_less_than_float32_too(
    dtype: str, device: str
) -> None:
    measured = {c for c, d, where in tolerance.table() if (d, where) == (dtype, device)}
    undecided = {check for check in measured if tolerance.find(check, dtype, device) is None}
    assert undecided == set()
    assert set(statistic.NARROW) <= measured


@pytest.mark.parametrize("key", sorted(tolerance.table()))
def test_a_row_that_ships_is_of_what_its_check_measures(key: tuple[str, str, str]) -> None:
    assert tolerance.row(*key) is not None


def test_what_nobody_measured_has_no_limit() -> None:
    assert tolerance.find("golden.fp32", "float8") is None


def test_a_table_with_a_missing_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (text, why) in enumerate(
        [
            ('["a.b".float32.cpu]\nvalue = 1\n', r"a\.b in float32 on cpu: the keys must be"),
            ('["a.b".float32]\nvalue = 1\n', r"a\.b in float32 on value"),
            ('["a.b"]\nfloat32 = 1\n', r"named by check, dtype and device"),
        ]
    ):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        monkeypatch.setenv("DSPATCH_TOLERANCES", str(path))
        with pytest.raises(ConformanceError, match=why):
            tolerance.table()


def test_rows_of_ones_own_go_before_those_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ("golden.fp32", "float32", "cpu")
    path = tmp_path / "mine.toml"
    tolerancefile.write(path, {key: replace(tolerance.table()[key], value=0.5)})
    monkeypatch.setenv("DSPATCH_TOLERANCES", str(path))
    found = tolerance.find(*key)
    assert found is not None
    assert found.value == 0.5
    assert tolerance.find("decode.paged", "float32") is not None


@pytest.mark.parametrize(
    ("value", "noise", "fault", "band"),
    [
        (0.3, 0.1, 0.9, 0.3),
        (None, 0.002, 0.0048, 0.0031),  # too close to decide, and apart enough to tell where
        (None, 0.002, 0.0039, None),
        (None, 0.88, 0.0047, None),
    ],
)
def test_a_place_is_told_where_noise_ends_well_before_the_weakest_fault(
    value: float | None, noise: float, fault: float, band: float | None
) -> None:
    row = tolerance.Tolerance(
        value=value, unit="u", noise=noise, fault=fault, reason="r", date="2026-11-30"
    )
    assert row.band == (band if band is None else pytest.approx(band, rel=0.02))
    if band and value is None:
        assert noise < band < fault


def test_a_place_is_told_by_operations_where_they_were_measured() -> None:
    for dtype, device in product(("bfloat16", "float16"), ("cpu", "cuda")):
        assert diagnosis.band(dtype, device) is not None
    assert diagnosis.band("float32", "cpu") is not None
    assert diagnosis.band("float32", "cuda") is None
    assert diagnosis.band("float8", "cuda") is None


def test_limits_that_a_document_states_are_those_of_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "pytorch-engine.md").read_text(encoding="utf-8")
    stated = [float(each) for each in re.findall(r"\(limit ([\d.e-]+)\)", text)]
    checks = ("layers.local", "routes.replayed")
    held = [tolerance.find(check, "bfloat16", "cuda") for check in checks]
    assert stated == [each.limit for each in held if each]
