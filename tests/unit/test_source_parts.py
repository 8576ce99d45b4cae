"""The parts of a build from source, each by itself."""

from __future__ import annotations

import hashlib
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from dspatch import pins
from dspatch.errors import MissingToolsError, PinError, SourceBuildError
from dspatch.git import EXECUTABLE, Entry
from dspatch.stages import build
from dspatch.wheel.source import lock, needs, preflight, progress, sources, toolchain
from dspatch.wheel.source.recipe import Recipe, recipe
from dspatch.wheel.source.toolchain import Toolchain

PLAIN = "100644"
CUDA = recipe("vllm", "cuda")
CPU = recipe("vllm", "cpu")
HAS = Toolchain(
    compiler=Version("12.3"), headers=frozenset([*CPU.headers, *CUDA.headers]), nvcc=Version("12.8"), ccache=False,
    cores=16, memory=64.0, disk=100.0,
)  # fmt: skip


def having(**changed: object) -> Toolchain:
    return Toolchain(**{**vars(HAS), **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "found", "lacks"),
    [
        (CPU, {"compiler": None}, "apt-get install g++"),
        (CPU, {"compiler": Version("11.4")}, "g++ 12.0 or newer: this one is 11.4"),
        (CPU, {"headers": frozenset()}, "numa.h: apt-get install libnuma-dev"),
        (CPU, {"memory": 1.0}, "2.0 GB of free memory: 1.0 are free"),
        (CPU, {"disk": 1.0}, "4.0 GB of free disk"),
        (CUDA, {"nvcc": None}, "CUDA toolkit"),
    ],
)
def test_each_lack_is_named_with_its_cure(
    wanted: Recipe, found: dict[str, object], lacks: str
) -> None:
    preflight.check(wanted, HAS)
    with pytest.raises(MissingToolsError, match="cannot be built") as caught:
        preflight.check(wanted, having(**found))
    assert lacks in caught.value.why


def test_all_lacks_are_told_at_once() -> None:
    with pytest.raises(MissingToolsError) as caught:
        preflight.check(CUDA, having(compiler=None, nvcc=None, memory=0.1, disk=0.1))
    assert len(caught.value.why.splitlines()) == 5


@pytest.mark.parametrize(
    ("torch", "said"), [(None, "CPU build"), (Version("13.0"), "nvcc of CUDA 13.0")]
)
def test_nvcc_must_be_of_the_cuda_of_torch(torch: Version | None, said: str) -> None:
    preflight.check_cuda(CUDA, HAS, Version("12.8"))
    preflight.check_cuda(CPU, HAS, None)
    with pytest.raises(MissingToolsError) as caught:
        preflight.check_cuda(CUDA, HAS, torch)
    assert said in caught.value.why


@pytest.mark.parametrize(
    ("memory", "cores", "asked", "jobs"),
    [(64.0, 16, None, 12), (64.0, 4, None, 4), (3.0, 16, None, 1), (64.0, 16, 3, 3)],
)
def test_jobs_fit_memory_and_cores(memory: float, cores: int, asked: int | None, jobs: int) -> None:
    assert preflight.jobs(CUDA, having(memory=memory, cores=cores), asked) == jobs


def test_an_unknown_device_names_one_that_is_known() -> None:
    with pytest.raises(PinError) as caught:
        recipe("vllm", "tpu")
    assert caught.value.next == "use --device cpu"
    with pytest.raises(PinError, match="how to build lmdeploy"):
        recipe("lmdeploy", "cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[vllm]\ndevices = { cpu = { memory = "much", disk = 1.0 } }\n', "`memory` must be"),
        ("[vllm]\ndevices = { cpu = { disk = 1.0 } }\n", "`memory` (number) is missing"),
        ("[vllm]\nspeed = 1\ndevices = {}\n", "unknown key `speed`"),
        (
            "[vllm]\nsettings = [1]\ndevices = { cpu = { memory = 1.0, disk = 1.0 } }\n",
            "`settings` must be a list of strings",
        ),
        (
            '[vllm]\ndevices = { cpu = { memory = 1.0, disk = 1.0, compiler = "new" } }\n',
            "`compiler` must be a version",
        ),
    ],
)
def test_a_table_with_a_fault_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPATCH_PINS", str(tmp_path))
    (tmp_path / "builds.toml").write_text(text)
    with pytest.raises(PinError) as caught:
        recipe("vllm", "cpu")
    assert "builds.toml, line" in caught.value.what
    assert said.partition(" (")[0] in caught.value.what


def test_what_a_build_asks_for() -> None:
    asks = b'[build-system]\nrequires = ["torch == 2.4.0+cpu", "ninja", "wheel"]\n'
    assert needs.requirements(asks) == ("ninja", "torch==2.4.0", "wheel")
    assert needs.requirements(asks, "2.13.0") == ("ninja", "torch==2.13.0", "wheel")
    assert needs.requirements(b"[project]\n") == ("setuptools", "wheel")
    assert needs.requirements(None) == ("setuptools", "wheel")
    assert needs.requirements(b"[build-system]\nrequires = []\n") == ()


@pytest.mark.parametrize("text", [b"[build", b'[build-system]\nrequires = ["=="]\n', b"\xff"])
def test_a_pyproject_that_cannot_be_read(text: bytes) -> None:
    with pytest.raises(SourceBuildError, match="pyproject"):
        needs.requirements(text)


def test_a_wheel_is_bound_to_the_torch_it_was_built_with() -> None:
    marked = 'torch==2.4.0+cpu ; platform_machine != "ppc64le"'
    lines = needs.torch_lines([marked, "torchvision", "numpy<2"], "2.13.0")
    assert lines == {marked: 'torch==2.13.0 ; platform_machine != "ppc64le"'}


@pytest.mark.parametrize(
    ("said", "seconds", "told"),
    [
        (b"[3/12] Building CXX\n", 30.0, "3 of 12 steps, about 2 min left"),
        (b"[1/9] a\n[6/9] b\n", 20.0, "6 of 9 steps, about 10 s left"),
        (b"[9/9] Linking\n", 20.0, "9 of 9 steps"),
        (b"[ 50%] Building\n", 10.0, "50%, about 10 s left"),
        (b"[0/2] Re-checking\n", 1.0, "0 of 2 steps"),
        (b"Collecting\n", 1.0, None),
    ],
)
def test_how_far_a_build_is(said: bytes, seconds: float, told: str | None) -> None:
    assert progress.step_of(said, seconds) == told


def test_progress_is_told_of_this_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_EVERY", 0.01)
    log, steps = tmp_path / "log", list[str]()
    log.write_bytes(b"[9/9] of the last run\n")
    with progress.told(log, steps.append):
        time.sleep(0.1)
        before = list(steps)
        with log.open("ab") as stream:
            stream.write(b"[1/2] now\n")
        while not steps:
            time.sleep(0.01)
    assert before == []
    assert steps[0].startswith("1 of 2 steps")


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda = '12.8'\n", Version("12.8")),
        ("from typing import Optional\ncuda: Optional[str] = '12.1'\n", Version("12.1")),
        ("cuda = None\n", None),
        ("hip = '6.2'\n", None),
    ],
)
def test_the_cuda_of_torch_is_read_not_imported(
    text: str, cuda: Version | None, tmp_path: Path
) -> None:
    (tmp_path / "version.py").write_text(f"raise_if_run = 1 / 0\n{text}")
    assert toolchain.cuda_of(tmp_path) == cuda


FILES = st.dictionaries(
    st.sampled_from(["a.py", "b.py", "sub/c.cpp", "sub/deep/d.h"]),
    st.tuples(st.binary(max_size=8), st.sampled_from([PLAIN, EXECUTABLE])),
)


def tree(files: dict[str, tuple[bytes, str]]) -> tuple[dict[str, Entry], dict[str, bytes]]:
    ids = {data: hashlib.sha1(data).hexdigest() for data, _ in files.values()}
    entries = {
        path: Entry(path=path, mode=mode, blob=ids[data]) for path, (data, mode) in files.items()
    }
    return entries, {oid: data for data, oid in ids.items()}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees=st.lists(FILES, min_size=1, max_size=4))
def test_the_folder_holds_the_last_tree_and_what_a_build_made(
    trees: list[dict[str, tuple[bytes, str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("put") / "src"
    for files in trees:
        entries, blobs = tree(files)
        before = {
            path: (folder / path).lstat().st_mtime_ns for path in files if (folder / path).exists()
        }
        changed = sources.put(folder, entries, blobs.__getitem__)
        for path, (data, mode) in files.items():
            assert (folder / path).read_bytes() == data
            assert bool((folder / path).stat().st_mode & 0o100) == (mode == EXECUTABLE)
            if path not in changed:
                assert (folder / path).lstat().st_mtime_ns == before[path]
        (folder / "build").mkdir(exist_ok=True, parents=True)
        (folder / "build/made.o").touch()
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert found == {*trees[-1], "build/made.o"}
    assert sources.put(folder, *_again(trees[-1])) == ()


def _again(files: dict[str, tuple[bytes, str]]) -> tuple[dict[str, Entry], object]:
    entries, blobs = tree(files)
    return entries, blobs.__getitem__


def test_a_file_that_the_build_wrote_over_is_put_back(tmp_path: Path) -> None:
    entries, blobs = tree({"commit_id.py": (b"x = 1\n", PLAIN)})
    folder = tmp_path / "src"
    sources.put(folder, entries, blobs.__getitem__)
    (folder / "commit_id.py").write_bytes(b"x = 2\n")
    assert sources.put(folder, entries, blobs.__getitem__) == ("commit_id.py",)
    assert (folder / "commit_id.py").read_bytes() == b"x = 1\n"


def test_nothing_is_written_outside_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    target = str(tmp_path / "outside").encode()
    (tmp_path / "outside").mkdir()
    link = Entry(path="sub", mode="120000", blob="1")
    sources.put(folder, {"sub": link}, lambda _: target)
    inside = Entry(path="sub/x.py", mode=PLAIN, blob="2")
    with pytest.raises(SourceBuildError, match="outside"):
        sources.put(
            folder, {"sub": link, "sub/x.py": inside}, lambda oid: target if oid == "1" else b"x"
        )
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    ("members", "stated"),
    [
        (("vllm/_version.py", "vllm/version.py", "vllm/__init__.py"), "vllm/_version.py"),
        (("vllm/version.py", "vllm/__init__.py"), "vllm/version.py"),
        (("vllm/__init__.py",), "vllm/__init__.py"),
    ],
)
def test_where_a_wheel_states_its_version(
    members: tuple[str, ...], stated: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "base.whl", "w") as archive:
        for path in members:
            archive.writestr(path, "")
    assert build._version_file(pins.engine("vllm"), tmp_path / "base.whl") == stated


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("nvidia-cuda-runtime-cu12==12.8.90 --hash=sha256:00\n", Version("12.8")),
        ("nvidia-cuda-runtime==13.0.96 --hash=sha256:00\n", Version("13.0")),
        ("nvidia-cuda-runtime-cu12 is none\n", None),
        ("", None),
    ],
)
def test_the_cuda_of_a_torch_is_told_by_the_lock_before_it_is_fetched(
    line: str, cuda: Version | None
) -> None:
    assert lock.cuda_of(f"mpmath==1.3.0 --hash=sha256:00\n{line}torch==2.9.0 --hash=x\n") == cuda


def test_without_a_torch_no_cuda_is_told() -> None:
    assert lock.cuda_of("nvidia-cuda-runtime==13.0.96 --hash=sha256:00\n") is None
