"""A CUDA toolkit that lacks libraries, made whole from packages of an index."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from dspatch import process
from dspatch.errors import MissingToolsError
from dspatch.wheel.source import toolchain, toolkit
from dspatch.wheel.source.recipe import recipe
from dspatch.wheel.source.toolchain import Toolchain

CUDA = recipe("lmdeploy", "cuda")
BARE = Toolchain(
    compiler=Version("12.2"), headers=frozenset(), nvcc=Version("13.0"), ccache=False,
    cores=2, memory=8.0, disk=50.0,
)  # fmt: skip
HEADER = """
typedef int CUresult;
#define cuMemAlloc cuMemAlloc_v2
extern "C" CUresult cuMemAlloc(void **at, unsigned long bytes);
extern "C" CUresult cuInit(unsigned flags);
"""


def written(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A toolkit with a compiler and the runtime, and nothing else."""
    root = tmp_path / "cuda"
    for name in ("bin/nvcc", "nvvm/libdevice", "lib/libcudart.so", "include/cuda_runtime.h"):
        written(root / name)
    written(root / "include/cuda.h", HEADER)
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What pip unpacks of NVIDIA's packages, of CUDA 13 and of 12."""
    root = tmp_path / "site"
    for name in ("cu13/include/cublas_v2.h", "cu13/lib/libcublas.so.13", "curand/include/curand.h"):
        written(root / "nvidia" / name)
    written(root / "nvidia/cu13/include/cuda.h", "of another version")
    return root


def test_a_toolkit_gets_what_it_lacks_and_keeps_its_own(
    home: Path, site: Path, tmp_path: Path
) -> None:
    place = toolkit.joined(home, site, tmp_path / "whole")
    assert (place / "include/cublas_v2.h").is_file()
    assert (place / "include/curand.h").is_file()
    # The linker asks for a library without its version, which packages leave out.
    assert (place / "lib64/libcublas.so").resolve().name == "libcublas.so.13"
    assert (place / "include/cuda.h").read_text() == HEADER
    assert (place / "bin/nvcc").resolve() == home / "bin/nvcc"


def test_the_driver_is_linked_by_a_stub_of_its_functions(
    home: Path, site: Path, tmp_path: Path
) -> None:
    place = toolkit.joined(home, site, tmp_path / "whole")
    stub = ctypes.CDLL(str(place / "lib/stubs/libcuda.so"))
    assert stub.cuInit
    assert stub.cuMemAlloc_v2
    assert not hasattr(stub, "cuMemAlloc")
    said = process.run(["readelf", "-d", place / "lib/stubs/libcuda.so"]).stdout
    assert "libcuda.so.1" in said


def test_a_toolkit_as_its_installer_lays_it_out_is_only_read(
    home: Path, site: Path, tmp_path: Path
) -> None:
    (home / "lib").rename(home / "lib64")
    written(home / "lib64/stubs/libnvidia-ml.so")
    before = sorted(home.rglob("*"))
    place = toolkit.joined(home, site, tmp_path / "whole")
    assert (place / "lib/libcudart.so").resolve() == home / "lib64/libcudart.so"
    assert (place / "lib64/stubs/libnvidia-ml.so").is_file()
    assert ctypes.CDLL(str(place / "lib/stubs/libcuda.so")).cuInit
    assert sorted(home.rglob("*")) == before


def test_a_driver_library_of_the_toolkit_is_taken(home: Path, site: Path, tmp_path: Path) -> None:
    written(home / "lib/stubs/libcuda.so", "its own")
    place = toolkit.joined(home, site, tmp_path / "whole")
    assert (place / "lib/stubs/libcuda.so").read_text() == "its own"


def test_links_follow_a_toolkit_that_moved(home: Path, site: Path, tmp_path: Path) -> None:
    toolkit.joined(home, site, tmp_path / "whole")
    moved = home.rename(tmp_path / "elsewhere")
    place = toolkit.joined(moved, site, tmp_path / "whole")
    assert (place / "bin/nvcc").resolve() == moved / "bin/nvcc"


def test_what_went_and_what_came_is_seen_the_next_time(
    home: Path, site: Path, tmp_path: Path
) -> None:
    place = toolkit.joined(home, site, tmp_path / "whole")
    before = (place / "lib/stubs/libcuda.so").stat().st_mtime_ns
    (site / "nvidia/curand/include/curand.h").unlink()
    toolkit.joined(home, site, tmp_path / "whole")
    assert not (place / "include/curand.h").is_symlink()
    assert (place / "lib/stubs/libcuda.so").stat().st_mtime_ns == before
    written(home / "lib/stubs/libcuda.so", "its own")
    toolkit.joined(home, site, tmp_path / "whole")
    assert (place / "lib/stubs/libcuda.so").read_text() == "its own"


def test_a_folder_that_is_no_toolkit_is_refused(site: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingToolsError, match="no CUDA toolkit") as caught:
        toolkit.joined(tmp_path, site, tmp_path / "whole")
    assert caught.value.next == "set CUDA_HOME"


def test_only_what_a_toolkit_lacks_is_fetched() -> None:
    both = {"cublas_v2.h": "nvidia-cublas==13.0.*", "curand.h": "nvidia-curand==10.4.0.*"}
    assert toolkit.packages(CUDA, BARE) == both
    found = replace(BARE, headers=frozenset(["curand.h"]))
    assert set(toolkit.packages(CUDA, found)) == {"cublas_v2.h"}
    assert (
        toolkit.packages(CUDA, replace(BARE, nvcc=Version("12.8")))["curand.h"]
        == "nvidia-curand-cu12"
    )
    # Of a CUDA that no table has, the header stays missing, and is told.
    assert toolkit.packages(CUDA, replace(BARE, nvcc=Version("11.8"))) == {}
    for_torch = toolkit.packages(recipe("vllm", "cuda"), BARE)
    assert for_torch.keys() == recipe("vllm", "cuda").headers.keys()
    assert for_torch["nvrtc.h"] == "nvidia-cuda-nvrtc"
    assert toolkit.packages(recipe("vllm", "cpu"), BARE) == {}


def test_the_toolkit_is_where_nvcc_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where `nvcc` on the path is a script that calls the one of the toolkit.
    script = tmp_path / "bin/nvcc"
    written(script, f"#!/bin/sh\necho '#$ TOP={tmp_path}/there/bin/..' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    assert toolchain.toolkit({}) == tmp_path / "there"
    assert toolchain.toolkit({"CUDA_HOME": "/opt/cuda"}) == Path("/opt/cuda")
    script.unlink()
    assert not toolchain.toolkit({}).exists()
