"""What a release of vLLM is told about the cores of its threads, by its own source."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from dspatch import paths
from dspatch.engines.workers.vllm_worker import threads

KNOWS = 'self.skip_setup = vllm_mask == "nobind"\n'
CORES = ",".join(map(str, sorted(os.sched_getaffinity(0))))


@pytest.mark.parametrize(
    ("files", "processes", "word"),
    [
        ({"v1/worker/cpu_worker.py": 'if omp_cpuids == "nobind":'}, 1, "nobind"),
        ({"v1/worker/cpu_worker.py": 'self.local_omp_cpuid = "all"'}, 1, "all"),
        ({"worker/cpu_worker.py": 'if omp_cpuids == "all":'}, 0, "all"),
        ({threads.READERS[0]: KNOWS, "v1/worker/cpu_worker.py": ""}, 2, "nobind"),
        ({threads.READERS[0]: KNOWS + threads.FAULT}, 0, "nobind"),
        ({threads.READERS[0]: KNOWS + threads.FAULT}, 1, CORES),
        ({threads.READERS[0]: KNOWS + threads.FAULT}, 2, f"{CORES}|{CORES}"),
    ],
)
def test_the_word_is_the_one_that_a_release_knows(
    files: dict[str, str], processes: int, word: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads.word(tmp_path, processes) == word


def test_the_fault_is_the_one_that_the_finding_is_about() -> None:
    findings = paths.PACKAGE / "audit" / "findings" / "vllm" / "vllm-cpu-nobind-crash.toml"
    assert re.search(tomllib.loads(findings.read_text())["probe"]["regex"], threads.FAULT)
