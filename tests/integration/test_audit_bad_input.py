"""`dspatch audit` given what cannot be audited: a message that says what, why and what next, and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import audit_kit
from tests.integration.test_audit_flow import index, result, run
from tests.support import git, repository
from tests.unit.test_audit_environment import install

__all__ = ["index"]  # the fixture, used by every test here


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


@pytest.fixture
def site(python: Path) -> Path:
    """The venv's site-packages, empty."""
    (place,) = python.parents[1].glob("lib/python*/site-packages")
    for each in sorted(place.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    return place


def refused(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code, out, err = run(*words, capsys=capsys)
    assert not out
    assert "Traceback" not in err
    assert "\n  next: " in err
    return code, err


def test_an_unknown_revision_is_offered_from_git(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused("--rev", "v0.99", capsys=capsys)
    assert code == 11
    assert "nearest: v0.9.0" in err
    assert "dspatch audit --engine vllm --rev v0.99 --repo https://" in err


@pytest.mark.parametrize(
    ("name", "content", "mode", "told"),
    [
        ("python", "#!/bin/sh\nexit 3\n", 0o755, "it printed nothing"),
        ("python", "#!/bin/sh\necho hello\n", 0o755, "its answer cannot be read"),
        ("python", "\x7fELF", 0o755, "it is no program that can be run here"),
        ("python", "print()", 0o644, "it is no program that may be run"),
        ("bin", "", 0o644, "There is no Python at"),
    ],
)
def test_a_python_that_does_not_start(
    name: str,
    content: str,
    mode: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / name
    place.write_text(content)
    place.chmod(mode)
    code, err = refused("--env", str(tmp_path / "python"), capsys=capsys)
    assert code == 50
    assert told in err
    assert "importlib.metadata import" not in err


def test_an_engine_whose_package_is_gone(
    python: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "vllm", "0.9.0", package=False)
    code, err = refused("--env", str(python), capsys=capsys)
    assert code == 50
    assert "its package is not there" in err


@pytest.mark.parametrize(
    ("metadata", "told"), [(None, "has no METADATA"), ("Name: vllm\nVersion: zero\n", "'zero'")]
)
def test_an_engine_without_a_version(
    metadata: str | None,
    told: str,
    python: Path,
    site: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = install(site, "vllm", "0.9.0") / "METADATA"
    place.unlink()
    if metadata is not None:
        place.write_text(metadata)
    code, err = refused("--env", str(python), capsys=capsys)
    assert code == 50
    assert told in err


def states(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    done = result("--variant", "deepseek-v3", *words, capsys=capsys)
    found = {each["id"]: each["state"] for each in done["findings"]}
    return {**found, **dict.fromkeys(done["clean"], "no"), "notes": " ".join(done["notes"])}


def test_what_an_installation_has_lost_is_unknown_never_clean(
    python: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = install(site, "vllm", "0.9.0")
    whole = "".join(f"vllm/{name}.py,,\n" for name in ("__init__", "cpu", "models"))
    (info / "RECORD").write_text(whole)
    done = states("--env", str(python), capsys=capsys)
    assert done["vllm-v3-absent"] == "unknown"
    assert done["vllm-cpu-refused"] == "no"  # the file that it asks about is there
    assert "has lost 1 of the files in its RECORD (vllm/models.py)" in done["notes"]
    (info / "RECORD").write_text(whole.replace("vllm/models.py,,\n", ""))
    done = states("--env", str(python), capsys=capsys)
    assert done["vllm-v3-absent"] == "no"
    assert not done["notes"]


def test_an_installation_without_a_record_says_so(
    python: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (install(site, "vllm", "0.9.0") / "RECORD").unlink()
    done = states("--env", str(python), capsys=capsys)
    assert done["vllm-v3-absent"] == "unknown"
    assert "vllm has no RECORD" in done["notes"]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (None, "has no config.json"),
        ("{", "cannot be read"),
        ("[1]", "it holds a list, not an object"),
        ("{}", "its architecture is absent"),
        ('{"architectures": ["Qwen2ForCausalLM"]}', "its architecture is Qwen2ForCausalLM"),
        ('{"architectures": ["LlamaForCausalLM"], "vocab_size": 128256}', "it is a LlamaForCausalLM"),
        ('{"architectures": ["DeepseekV3ForCausalLM"], "n_group": "8"}', "n_group is '8'"),
        ('{"architectures": "DeepseekV3ForCausalLM"}', "its architecture is D"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_none(
    config: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    code, err = refused("--rev", "v0.9.0", "--model", str(tmp_path), capsys=capsys)
    assert code == 52
    assert told in err


def test_a_fork_works_and_says_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {**audit_kit.FILES, "vllm/cpu.py": audit_kit.BAD + "\n# ours\n"}
    fork = tmp_path / "fork"
    repository(fork, {path: text.encode() for path, text in files.items()})
    git(fork, "checkout", "--quiet", "-b", "ours")
    code, out, err = run("--repo", str(fork), "--rev", "ours", capsys=capsys)
    assert code == 0, err
    assert "nearest release: 0.9.0; of 2 files that were read, these are not: vllm/cpu.py" in out
    done = json.loads(run("--repo", str(fork), "--rev", "ours", "--json", capsys=capsys)[1])
    assert done["nearest"]["differing"] == ["vllm/cpu.py"]


def test_which_revision_of_a_fork_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused("--repo", "https://example.org/fork", capsys=capsys)
    assert code == 11
    assert "which revision" in err
