"""The nightly count of false alarms: no two pairs are alike, and a failure takes the bound away."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from dspatch.conformance import checkpoint, small
from dspatch.conformance.report import CheckResult, Status


@pytest.fixture
def alarms() -> ModuleType:
    """The command, as a module."""
    path = Path(__file__).parents[2] / "ci" / "false_alarms.py"
    spec = importlib.util.spec_from_file_location("false_alarms", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(name: str, status: Status) -> CheckResult:
    return CheckResult(check="golden.fp32", variant=name, dtype="float32", status=status)


def test_every_pair_is_another(alarms: ModuleType) -> None:
    pairs = list(alarms.cases("deepseek-v3", 3, 2))
    assert len({case.name for case in pairs}) == 6
    keys = {checkpoint.of(case, written_with="x").key for case in pairs}
    assert len(keys) == 3
    assert checkpoint.of(small.case("deepseek-v3"), written_with="x").key not in keys
    texts = {str(small.prompts(case.dice)) for case in pairs}
    assert len(texts) == 2
    assert str(small.prompts()) not in texts


def test_none_of_many_bounds_the_rate_and_one_of_them_does_not(alarms: ModuleType) -> None:
    clean = [result(f"deepseek-v3#{n}.0", "pass") for n in range(20)]
    assert alarms.told(clean, 20)["rate-below-at-95-percent"] == 0.15
    spoiled = [*clean[:-1], result("deepseek-v3#19.0", "fail")]
    found = alarms.told(spoiled, 20)
    assert (found["failed"], found["rate-below-at-95-percent"]) == (1, None)


def test_the_largest_number_of_each_check_is_told_and_none_is_larger_than_any(
    alarms: ModuleType,
) -> None:
    def measured(*numbers: float) -> object:
        rows = [
            replace(result(f"deepseek-v3#{n}.0", "fail"), measured=number, tolerance=1e-8)
            for n, number in enumerate(numbers)
        ]
        return alarms.told(rows, len(rows))["largest"]

    assert measured(2e-8, 3e-8, 1e-9) == {"golden.fp32": [3e-8, 1e-8]}
    assert measured(2e-8, math.nan, 1e-9) == {"golden.fp32": [math.inf, 1e-8]}
