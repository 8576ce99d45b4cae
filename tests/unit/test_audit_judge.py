"""Where a finding says what its probe needs, a source without that is unknown, not clean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.audit import judge, source
from dspatch.audit.source import Source
from tests import audit_kit
from tests.unit.test_audit_finding import load

DECIDES = {"file": "vllm/cpu.py", "symbol": "CpuPlatform.backend"}


def opened(folder: Path, text: str) -> Source:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "cpu.py").write_text(text)
    return source.of_folder("vllm", folder, version=None, kind="folder", origin="x", package="vllm")


@pytest.mark.parametrize(
    ("text", "plain", "with_decides"),
    [
        (audit_kit.BAD, "yes", "yes"),
        (audit_kit.GOOD, "no", "no"),
        ("class Elsewhere: ...\n", "no", "unknown"),
    ],
)
def test_what_a_probe_needs(text: str, plain: str, with_decides: str, tmp_path: Path) -> None:
    finding = load(audit_kit.REFUSED, tmp_path / "findings")
    found = opened(tmp_path, text)
    assert judge.one(finding, found, {}).state == plain
    answer = judge.one(replace(finding, decides=DECIDES), found, {})
    assert answer.state == with_decides
    assert answer.state != "unknown" or "is not there" in answer.why[0]


def test_every_file_is_read_once_and_ahead(tmp_path: Path) -> None:
    findings = [load(text, tmp_path / str(n)) for n, text in enumerate(audit_kit.ALL)]
    assert judge.looks_at(findings, {}) == ["csrc/kernel.cu", "vllm/cpu.py", "vllm/models.py"]
    found = opened(tmp_path, audit_kit.BAD)
    judge.fetch(findings, found, {})
    assert found.looked_at == ("csrc/kernel.cu", "vllm/cpu.py", "vllm/models.py")
    (tmp_path / "vllm" / "cpu.py").unlink()
    assert judge.one(findings[0], found, {}).state == "yes"
