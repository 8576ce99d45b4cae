"""The operators' unit tests, where PyTorch is: in the environment of a patched wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dspatch import process
from dspatch.engines import Options, vllm
from dspatch.engines.environment import for_wheel
from tests.e2e.test_series_faults import wheels

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
UNIT = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests" / "unit").glob("test_*.py")
    if 'importorskip("torch"' in path.read_text()
)
# The engine's own packages come first; pytest and dspatch are borrowed from this interpreter.
RUN = "import sys; sys.path += {path}; import pytest; sys.exit(pytest.main({arguments}))"


@pytest.mark.parametrize("tests", UNIT)
def test_operators_pass_on_the_engine_s_pytorch(tests: str) -> None:
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), str(ROOT / tests)]
    code = RUN.format(path=[str(ROOT), *filter(None, sys.path)], arguments=arguments)
    python = for_wheel("vllm", wheels("v0.27.1")[1]).python
    done = process.run([python, "-c", code], env=vllm.environment(Options()), cwd=ROOT)
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
