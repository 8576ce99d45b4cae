"""Every limit lies between what was measured without a fault and with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.conformance import checks, conversion, tolerance
from dspatch.errors import ConformanceError


def test_every_check_has_a_limit_and_every_limit_a_check() -> None:
    known = {*checks.CHECKS, *conversion.MEASURED}
    assert {check for check, _ in tolerance.table()} == known
    assert all((check, "float32") in tolerance.table() for check in known)


@pytest.mark.parametrize("key", sorted(tolerance.table()))
def test_a_limit_lies_between_noise_and_fault(key: tuple[str, str]) -> None:
    limit = tolerance.table()[key]
    assert limit.noise <= limit.value < limit.fault
    assert limit.reason
    assert limit.unit
    if limit.noise:
        assert limit.value >= 10 * limit.noise
        assert limit.fault >= 10 * limit.value


def test_what_nobody_measured_has_no_limit() -> None:
    assert tolerance.find("golden.fp32", "float8") is None


def test_a_table_with_a_missing_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "tolerance.toml").write_text('["a.b".float32]\nvalue = 1\n')
    monkeypatch.setattr(tolerance, "PACKAGE", tmp_path)
    with pytest.raises(ConformanceError, match=r"a\.b in float32"):
        tolerance.table.__wrapped__()
