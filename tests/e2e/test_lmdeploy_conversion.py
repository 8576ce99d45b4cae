"""LMDeploy's released conversion, run without a GPU: what it writes is right, and planted faults are caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch import index
from dspatch.carry.remote import releases
from dspatch.conformance import conversion
from dspatch.engines import silent

pytestmark = pytest.mark.e2e
MODEL = "deepseek-v2/published-groups"


def test_a_released_conversion_is_proven_and_every_planted_fault_caught(tmp_path: Path) -> None:
    release = releases.published("lmdeploy").release("v0.13.0")
    assert release is not None
    assert release.wheel is not None
    wheel = index.download_listed("lmdeploy", release.wheel)
    done = conversion.selftest(
        wheel=wheel, version="0.13.0", out=tmp_path, variants=[MODEL], progress=silent
    )
    assert done.ok, done.clean.failures()
    expected = {name for name, _, needs in conversion.FAULTS if "fp8-blocks" not in needs}
    assert {one.fault.name for one in done.planted} == expected
    assert {one.outcome for one in done.planted} == {"caught"}
