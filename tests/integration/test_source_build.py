"""`build-wheel --mode source`: a small engine with a build of its own, compiled by the real compiler."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from zipfile import ZipFile

import pytest

from dspatch import errors
from tests.integration.test_flow import APPLY, SOURCE, Bench, Prepared, one_release, prepared
from tests.support import PATCH, dedent, write_form

# PEP 517, no dependency: one object a source, kept between builds as CMake keeps them.
BACKEND = dedent(
    """
    import base64, hashlib, os, subprocess, zipfile
    from pathlib import Path

    def build_wheel(folder, settings=None, metadata=None):
        objects = Path("build/temp")
        objects.mkdir(parents=True, exist_ok=True)
        sources = sorted(Path("csrc").glob("*.cpp"))
        for number, source in enumerate(sources, 1):
            made = objects / f"{source.stem}.o"
            if not made.exists() or made.stat().st_mtime_ns < source.stat().st_mtime_ns:
                flags = os.environ.get("ENGINE_FLAGS", "").split()
                print(f"[{number}/{len(sources)}] Building {source} {flags}", flush=True)
                command = ["g++", *flags, "-fPIC", "-c", source, "-o", made]
                # A group of its own for each compiler, as Ninja makes one.
                subprocess.run(command, check=True, process_group=0)
        lib = Path("build/lib")
        for module in Path("vllm").rglob("*.py"):
            (lib / module).parent.mkdir(parents=True, exist_ok=True)
            (lib / module).write_bytes(module.read_bytes())
        made = sorted(objects.glob("*.o"))
        subprocess.run(["g++", "-shared", *made, "-o", lib / "vllm/_C.abi3.so"], check=True)
        version = f"{os.environ['ENGINE_VERSION']}+{os.environ['ENGINE_DEVICE']}"
        info = f"vllm-{version}.dist-info"
        head = f"Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\nRequires-Dist: six\\n"
        files = {str(p.relative_to(lib)): p.read_bytes() for p in sorted(lib.rglob("*")) if p.is_file()}
        files[f"{info}/METADATA"] = head.encode()
        files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\n"
        rows = []
        for path, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(data)}")
        files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
        name = f"vllm-{version}-cp38-abi3-linux_x86_64.whl"
        with zipfile.ZipFile(Path(folder) / name, "w") as archive:
            for path, data in files.items():
                archive.writestr(path, data)
        return name
    """
)
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
KERNEL = 'extern "C" int answer() { return 42; }\n'
OTHER = 'extern "C" int other() { return 7; }\n'
UPSTREAM = SOURCE | {
    "pyproject.toml": PYPROJECT.encode(),
    "backend.py": BACKEND.encode(),
    "csrc/kernel.cpp": KERNEL.encode(),
    "csrc/other.cpp": OTHER.encode(),
}
BUILDS = """\
[vllm]
variables = { ENGINE_VERSION = "{version}", ENGINE_DEVICE = "{device}" }
settings = ["ENGINE_FLAGS"]

[vllm.devices.cpu]
compiler = "5.0"
headers = { "vector" = "apt-get install libstdc++-dev" }
memory = 0.01
disk = 0.01
"""
DIFF = """\
diff --git a/csrc/kernel.cpp b/csrc/kernel.cpp
--- a/csrc/kernel.cpp
+++ b/csrc/kernel.cpp
@@ -1 +1 @@
-extern "C" int answer() { return 42; }
+extern "C" int answer() { return 43; }
"""
BUILD = ("build-wheel", "--mode", "source")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    base = {path: data for path, data in UPSTREAM.items() if path.startswith("vllm/")}
    release = partial(one_release, source=UPSTREAM, base=base)
    return prepared(tmp_path_factory.mktemp("made"), release)


@pytest.fixture
def bench(made: Prepared, tmp_path: Path) -> Iterator[Bench]:
    with made.bench(tmp_path) as bench:
        (tmp_path / "pins/builds.toml").write_text(BUILDS)
        yield bench


def native(bench: Bench, diff: str = DIFF) -> None:
    """Add a patch of a native source to the series."""
    folder = bench.root / "data/patches/vllm"
    shutil.rmtree(folder / "native", ignore_errors=True)
    write_form(folder / "native", {"v1.0": diff})
    (folder / "series").write_text("cpu-mla\nnative\n")


def log(bench: Bench) -> str:
    return (bench.tree.parent / "build/cpu/build.log").read_text()


def remembering(bench: Bench) -> Path:
    """What CMake remembers of a configure, beside the objects of the build."""
    path = bench.tree.parent / "build/cpu/src/build/temp.test/CMakeCache.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("CUDA_CUDART_LIBRARY:FILEPATH=CUDA_CUDART_LIBRARY-NOTFOUND\n")
    return path


def answer(path: Path, folder: Path, name: str = "answer") -> int:
    """What a function of the wheel's compiled member says."""
    with ZipFile(path) as archive:
        member = archive.extract("vllm/_C.abi3.so", mkdtemp(dir=folder))
    return int(ctypes.CDLL(member)[name]())


def test_native_patches_are_compiled_into_the_wheel(bench: Bench, tmp_path: Path) -> None:
    native(bench)
    bench.run(*APPLY)
    assert "native" in bench.run("build-wheel", code=errors.NativeSourceError.exit_code)
    done = bench.json(*BUILD)
    path = Path(bench.root, done["path"])
    assert answer(path, tmp_path) == 43
    assert done["wheel"]["version"].startswith("1.0+cpu.dspatch.")
    assert done["compiled"]["device"] == "cpu"
    assert done["compiled"]["compilers"].startswith("g++ ")
    with ZipFile(path) as archive:
        names = archive.namelist()
        assert b"CPU_MLA" in archive.read("vllm/registry.py")
        bill = json.loads(archive.read(next(n for n in names if n.endswith("dspatch.cdx.json"))))
    assert "native" in json.dumps(bill)
    assert bench.json("wheel", "verify")["passed"]
    assert bench.json(*BUILD)["cached"]


def test_a_second_build_compiles_what_changed_alone(bench: Bench, tmp_path: Path) -> None:
    bench.run(*APPLY)
    first = bench.json(*BUILD)
    assert answer(Path(bench.root, first["path"]), tmp_path) == 42
    assert "[1/2] Building" in log(bench)
    assert "[2/2] Building" in log(bench)
    native(bench)
    bench.run(*APPLY)
    remembered = remembering(bench)
    second = bench.json(*BUILD)
    assert remembered.exists()
    assert answer(Path(bench.root, second["path"]), tmp_path) == 43
    assert answer(Path(bench.root, second["path"]), tmp_path, "other") == 7
    assert "[1/2] Building" in log(bench)
    assert "[2/2] Building" not in log(bench)


def test_a_module_that_is_gone_is_not_packed_again(bench: Bench) -> None:
    bench.run(*APPLY)
    with ZipFile(Path(bench.root, bench.json(*BUILD)["path"])) as archive:
        assert "vllm/cpu_mla.py" in archive.namelist()
    bench.write_series({})
    bench.run(*APPLY)
    with ZipFile(Path(bench.root, bench.json(*BUILD)["path"])) as archive:
        assert "vllm/cpu_mla.py" not in archive.namelist()


def test_a_setting_of_the_user_is_another_wheel(bench: Bench) -> None:
    bench.run(*APPLY)
    plain = bench.json(*BUILD)
    remembered = remembering(bench)
    flags = bench.json(*BUILD, ENGINE_FLAGS="-O3")
    # CMake reads the flags of the environment the first time alone.
    assert not remembered.exists()
    assert flags["compiled"]["settings"] == {"ENGINE_FLAGS": "-O3"}
    assert flags["wheel"]["version"] != plain["wheel"]["version"]


def test_a_build_that_fails_says_where(bench: Bench) -> None:
    bench.run(*APPLY)
    bench.run(*BUILD)
    # The compiler repeats the line, so that the log has CMake's words for a failed configure, too.
    native(bench, DIFF.replace("return 43;", "retrun 43; // Configuring incomplete"))
    bench.run(*APPLY)
    remembered = remembering(bench)
    wheels = sorted(bench.root.glob("work/jobs/*/dist/*.whl"))
    told = bench.run(*BUILD, code=errors.SourceBuildError.exit_code)
    assert not remembered.exists()
    assert "csrc/kernel.cpp:1" in told
    assert "build.log" in told
    assert sorted(bench.root.glob("work/jobs/*/dist/*.whl")) == wheels
    native(bench)
    bench.run(*APPLY)
    bench.run(*BUILD)


def test_where_the_pin_says_so_a_wheel_is_compiled_without_being_asked_for(bench: Bench) -> None:
    own = bench.root / "pins/vllm.toml"
    head, base, rest = own.read_text().partition("[[pin.base]]")
    bound = '{ requirement = "six<2", reason = "untried" }'
    flag = '{ variable = "ENGINE_FLAGS", value = "-O1", reason = "untried" }'
    build = f'[[pin.build]]\ntarget = "cpu"\ntorch = "2.0"\nbounds = [{bound}]\n'
    build += f"settings = [{flag}]\n"
    assert rest.count("target = ") == 1
    own.write_text(head + build)
    bench.run(*APPLY)
    done = bench.json("build-wheel")
    assert [each["requirement"] for each in done["compiled"]["bounds"]] == ["six<2"]
    assert done["compiled"]["settings"] == {"ENGINE_FLAGS": "-O1"}
    assert "Building csrc/kernel.cpp ['-O1']" in log(bench)
    own_flag = bench.json("build-wheel", ENGINE_FLAGS="-O2")
    assert own_flag["compiled"]["settings"] == {"ENGINE_FLAGS": "-O2"}
    assert own_flag["wheel"]["version"] != done["wheel"]["version"]
    # What the pin sets decides what is compiled, also where the table of builds does not name it.
    more = '{ variable = "ENGINE_MORE", value = "1", reason = "untried" }'
    own.write_text(head + build.replace(flag, f"{flag}, {more}"))
    two = bench.json("build-wheel", ENGINE_MORE="2")
    assert two["compiled"]["settings"] == {"ENGINE_FLAGS": "-O1", "ENGINE_MORE": "2"}
    assert bench.json("build-wheel")["compiled"]["settings"]["ENGINE_MORE"] == "1"
    own.write_text(head + build)
    with ZipFile(Path(bench.root, done["path"])) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        assert b"Requires-Dist: six<2\n" in archive.read(metadata)
    assert bench.json("wheel", "verify")["passed"]
    told = bench.run(
        "build-wheel", "--mode", "overlay", code=errors.IncompatibleBaseError.exit_code
    )
    assert "no base wheel for the target cpu" in told
    own.write_text(head + build.replace("six<2", "seven<2"))
    assert "asks for no seven" in bench.run("build-wheel", code=errors.WheelError.exit_code)
    own.write_text(head + base + rest)


def test_what_the_machine_lacks_is_told_at_once(bench: Bench, tmp_path: Path) -> None:
    bench.run(*APPLY)
    table = bench.root / "pins/builds.toml"
    table.write_text(BUILDS.replace('"5.0"', '"99.0"').replace("memory = 0.01", "memory = 9e9"))
    told = bench.run(*BUILD, code=errors.MissingToolsError.exit_code)
    assert "g++ 99.0 or newer" in told
    assert "GB of free memory" in told
    table.write_text(BUILDS.replace('"vector"', '"no_such_header.h"'))
    told = bench.run(*BUILD, code=errors.MissingToolsError.exit_code)
    assert "no_such_header.h: apt-get install libstdc++-dev" in told
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("git", "python3"):
        (bare / tool).symlink_to(shutil.which(tool) or sys.executable)
    table.write_text(BUILDS)
    told = bench.run(*BUILD, code=errors.MissingToolsError.exit_code, PATH=str(bare))
    assert "g++: apt-get install g++" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "tpu"), "use --device cpu"),
        (("--jobs", "0"), "0 is not in the range"),
    ],
)
def test_what_cannot_be_built(words: tuple[str, ...], said: str, bench: Bench) -> None:
    bench.run(*APPLY)
    with bench.start(*BUILD, *words) as process:
        _, err = process.communicate()
    assert process.returncode in (2, errors.PinError.exit_code)
    assert said in err


def test_options_of_a_source_build_go_with_it(bench: Bench) -> None:
    bench.run(*APPLY)
    assert "--mode source" in bench.run("build-wheel", "--jobs", "2", code=2)


def test_a_compiled_wheel_has_no_delta_and_none_is_compiled_to_say_so(bench: Bench) -> None:
    bench.run(*APPLY)
    told = bench.run(*BUILD, "--delta", code=errors.DeltaError.exit_code)
    assert "has no delta" in told
    assert not (bench.tree.parent / "build").exists()


def test_a_compiled_wheel_that_is_gone_is_told_and_made_again(bench: Bench) -> None:
    bench.run(*APPLY)
    bench.run(*BUILD)
    shutil.rmtree(bench.tree.parent / "build/cpu/dist")
    told = bench.run("wheel", "verify", code=errors.SourceBuildError.exit_code)
    assert "dspatch build-wheel --mode source" in told
    told = bench.run(*BUILD, "--delta", code=errors.DeltaError.exit_code)
    assert "has no delta" in told
    bench.run(*BUILD)
    assert bench.json("wheel", "verify")["passed"]


def test_a_python_patch_alone_gives_what_an_overlay_gives(bench: Bench) -> None:
    bench.write_series({"cpu-mla": PATCH})
    bench.run(*APPLY)
    bench.run(*BUILD)
    with ZipFile(next(bench.root.glob("work/jobs/*/dist/*.whl"))) as archive:
        assert archive.read("vllm/cpu_mla.py") == (bench.tree / "vllm/cpu_mla.py").read_bytes()


def test_a_build_that_is_ended_takes_its_compilers_with_it(bench: Bench) -> None:
    bench.run(*APPLY)
    tools, told = bench.root / "tools", bench.root / "compiling"
    tools.mkdir()
    waits = f'case "$*" in *-fPIC*) echo $$ > {told}; exec sleep 60;; esac'
    (tools / "g++").write_text(f'#!/bin/sh\n{waits}\nexec {shutil.which("g++")} "$@"\n')
    (tools / "g++").chmod(0o755)
    with bench.start(*BUILD, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}") as process:
        while not (told.is_file() and told.read_text().strip()):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not alive(int(told.read_text()))


def alive(pid: int) -> bool:
    """Whether a process still runs; one that nobody has waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
