"""The options of an installed vLLM, read from its files, beside those that its own parser lists when asked."""

from __future__ import annotations

import importlib.util
import json
import subprocess

import pytest

from dspatch import paths, pins
from dspatch.audit import environment
from dspatch.engines.environment import for_wheel
from dspatch.index import download
from dspatch.serve import engines, options
from dspatch.serve import environment as variables

pytestmark = pytest.mark.e2e


def worker() -> str:
    """The program that lists what a parser takes."""
    place = paths.PACKAGE.parent / "benchmarks" / "serve_truth.py"
    spec = importlib.util.spec_from_file_location("serve_truth", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.WORKER)


def test_an_installation_reads_as_its_own_parser_lists_it() -> None:
    base = pins.base_for(pins.load("vllm", "v0.27.1"), "cpu")
    python = for_wheel("vllm", download(base.project, base.filename, base.sha256)).python
    done = subprocess.run(
        [python, "-c", worker(), "vllm"], capture_output=True, text=True, check=True
    )
    (told,) = (line for line in done.stdout.splitlines() if line.startswith("TRUTH"))
    truth = json.loads(told.removeprefix("TRUTH"))
    source = environment.of_environment(str(python), "vllm")
    facts = engines.facts("vllm")
    taken = options.read(source, facts, facts.servers[0])
    assert taken is not None
    assert taken.whole
    assert set(taken.table) == set(truth["options"])
    assert set(truth["variables"]) <= set(variables.read(source, facts).variables)
