"""The tests that patches bring for upstream: they fail on the stock wheel and pass on the patched one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dspatch import process
from dspatch.engines import Options, vllm
from dspatch.engines.environment import for_wheel
from dspatch.series import layered
from tests.e2e.test_series_faults import wheels

pytestmark = pytest.mark.e2e

REV = "v0.27.1"
PATCHES = [patch for patch in layered("vllm").patches if patch.upstream_test]
# The engine's own packages come first; pytest is borrowed from this interpreter.
RUN = "import sys; sys.path += {path}; import pytest; sys.exit(pytest.main({arguments}))"


def summary(python: Path, test: Path, folder: Path) -> str:
    """What pytest says at the end of a run in an engine's environment."""
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "-c", "/dev/null"]
    arguments = [*options, "--rootdir", str(test.parent), str(test)]
    code = RUN.format(path=[*filter(None, sys.path)], arguments=arguments)
    command = [python, "-c", code]
    return process.run(command, env=vllm.environment(Options()), cwd=folder, check=False).stdout


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_it_fails_on_stock_and_passes_on_patched_code(patch, tmp_path: Path) -> None:
    test = patch.upstream_test.file
    stock, patched = (for_wheel("vllm", wheel).python for wheel in wheels(REV))
    before = summary(stock, test, tmp_path)
    assert re.search(r"\d+ failed", before), before
    assert "error" not in before.splitlines()[-1]
    after = summary(patched, test, tmp_path)
    assert re.search(r"^\d+ passed in", after, re.MULTILINE), after


def test_there_is_one() -> None:
    assert "v3-topk-method" in [patch.name for patch in PATCHES]
