"""`dspatch patch matrix` on a small engine's releases: what it prints, writes, and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit import matrixkit
from tests.unit.index_server import Index, serve
from tests.unit.matrixkit import FILES, MLA, NATIVE, NATIVE_TRAITS, PATCH

Run = Callable[..., str]


@pytest.fixture
def index() -> Iterator[Index]:
    with serve() as running:
        platform = FILES["vllm/platform.py"]
        matrixkit.offer(running, "1.0", native={"csrc/kernel.cpp": b"slow\n"})
        matrixkit.offer(
            running, "1.1", {"vllm/registry.py": b"from enum import Enum\nBackend = 1\n"}
        )
        fixed = platform.replace(MLA.encode(), b'            return "MLA"\n')
        matrixkit.offer(running, "1.2", {"vllm/platform.py": fixed})
        yield running


@pytest.fixture
def dspatch(index: Index, tmp_path: Path) -> Run:
    matrixkit.write_series(tmp_path / "data", {"cpu-mla": PATCH, "native": NATIVE}, NATIVE_TRAITS)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "GIT_"))},
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.simple,
        "DSPATCH_CACHE": str(tmp_path / "cache"),
        "DSPATCH_WORK": str(tmp_path / "work"),
        "DSPATCH_DATA": str(tmp_path / "data"),
    }

    def run(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dspatch", "patch", "matrix", *arguments],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr + done.stdout

    return run


def test_the_table_of_a_cold_and_a_warm_run_is_the_same(dspatch: Run, index: Index) -> None:
    cold = dspatch()
    lines = [line.split() for line in cold.splitlines()]
    assert ["cpu-mla", "cpu", "1.0", "semantic"] in lines
    assert ["cpu-mla", "cpu", "1.1", "conflict"] in [line[:4] for line in lines]
    assert ["cpu-mla", "cpu", "1.2", "not", "needed"] in [line[:5] for line in lines]
    assert ["native", "cuda", "1.0–1.2", "not", "measured"] in [line[:5] for line in lines]
    index.requests.clear()
    assert dspatch() == cold
    assert index.requests == ["/simple/vllm/"]


def test_the_summary_of_a_release(dspatch: Run) -> None:
    told = dspatch("--summary", "--rev", "v1.1", "--variant", "deepseek-v3", "--target", "cpu")
    assert told.splitlines()[0] == "vllm 1.1, cpu: 0 of 2 patches apply"
    assert "cpu-mla  cpu     conflict" in told
    assert "needs --rev" in dspatch("--help")
    assert "name it with --rev" in dspatch("--summary", code=2)
    assert "no index has a release v9.9" in dspatch("--summary", "--rev", "v9.9", code=11)


def test_one_json_object(dspatch: Run) -> None:
    found = json.loads(dspatch("--json", "--native"))
    assert found["releases"] == ["1.0", "1.1", "1.2"]
    rows = {(row["patch"], row["target"]): row["cells"] for row in found["rows"]}
    assert rows["native", "cpu"]["1.0"]["verdict"] == "semantic"
    assert rows["native", "cpu"]["1.1"]["verdict"] == "not measured"
    assert found["bytes"] > 0
    assert (found["fresh"], found["kept"]) == (9, 0)


def test_a_document_is_written_and_holds_until_it_lies(dspatch: Run, tmp_path: Path) -> None:
    page = tmp_path / "support.md"
    assert dspatch("--write", "support.md") == "support.md: written\n"
    assert dspatch("--write", "support.md") == "support.md: was up to date\n"
    assert dspatch("--check", "support.md").startswith("support.md: holds; 6 cells not compared")
    assert dspatch("--check", "support.md", "--native").startswith("support.md: holds; 6 cells")
    assert dspatch("--markdown").strip() in page.read_text()

    page.write_text(page.read_text().replace("| 1.0 | semantic |", "| 1.0–1.2 | semantic |"))
    told = dspatch("--check", "support.md", code=46)
    assert "cpu-mla on cpu, 1.1: claimed" in told
    assert "--write support.md" in told
    told = dspatch("--check", "support.md", "--json", code=46)
    failed = json.loads(told[told.index("{") :])
    assert failed["error"] == "ClaimError"


def test_what_native_sources_showed_is_not_written_over_unread(
    dspatch: Run, tmp_path: Path
) -> None:
    page = tmp_path / "support.md"
    page.write_text("<!-- dspatch matrix vllm brief --><!-- /dspatch matrix vllm brief -->\n")
    dspatch("--native", "--write", "support.md")
    brief = page.read_text()
    assert "| `native` | cpu, cuda | 1.0 |" in brief
    told = dspatch("--write", "support.md", code=46)
    assert "would lose what it says of 2 cells" in told
    assert "--native --write support.md" in told
    assert page.read_text() == brief
    page.unlink()
    dspatch("--native", "--write", "support.md")
    assert "would lose what it says of 2 cells" in dspatch("--write", "support.md", code=46)
    page.write_text(page.read_text().replace("3 releases, 1.0 to 1.2.", "Some releases."))
    assert dspatch("--write", "support.md") == "support.md: written\n"
    assert "| `native` | cpu, cuda | 1.0–1.2 | not measured |" in page.read_text()


def test_a_document_without_a_claim_does_not_pass(dspatch: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("# Nothing\n")
    assert "no part between marks" in dspatch("--check", "empty.md", code=46)
    assert "leave --rev out" in dspatch("--check", "empty.md", "--rev", "v1.0", code=2)


def test_no_document_of_several_is_left_out_in_silence(dspatch: Run, tmp_path: Path) -> None:
    for name in ("one.md", "two.md"):
        (tmp_path / name).write_text("# Nothing\n")
    for option in ("--write", "--check"):
        told = dspatch(option, "one.md", option, "two.md", code=2)
        assert f"{option} takes one document" in told
    assert "one of --write and --check" in dspatch("--write", "one.md", "--check", "two.md", code=2)
    assert (tmp_path / "one.md").read_text() == (tmp_path / "two.md").read_text() == "# Nothing\n"


def test_a_release_that_breaks_a_claim_is_told(dspatch: Run, index: Index, tmp_path: Path) -> None:
    dspatch("--write", "support.md")
    platform = FILES["vllm/platform.py"].replace(b"not supported on CPU", b"unsupported")
    matrixkit.offer(index, "1.0", {"vllm/platform.py": platform})
    told = dspatch("--check", "support.md", code=46)
    assert "cpu-mla on cpu, 1.0: claimed semantic, measured not needed" in told
