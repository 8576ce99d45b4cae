"""`build-wheel --mode source` of an engine whose CMake fetches another project: real git, real CMake."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dspatch import errors
from dspatch.git import Change, NewCommit, Repo, init_bare
from dspatch.wheel.source import fetched
from tests.integration.test_flow import APPLY, Bench, Prepared, one_release, prepared
from tests.integration.test_source_build import BACKEND, BUILD, BUILDS, UPSTREAM, answer

STEPS = """\
    made = Path("build/temp")
    subprocess.run(["cmake", "-S", ".", "-B", made, "-G", "Ninja"], check=True)
    subprocess.run(["cmake", "--build", made], check=True)
"""
LISTS = """\
cmake_minimum_required(VERSION 3.18)
project(small CXX)
include(FetchContent)
FetchContent_Declare(tiny GIT_REPOSITORY https://host.invalid/tiny.git GIT_TAG v1)
FetchContent_MakeAvailable(tiny)
add_library(_C SHARED csrc/kernel.cpp)
target_link_libraries(_C PRIVATE tiny)
"""
KERNEL = '#include "tiny.h"\nextern "C" int answer() { return tiny() + 2; }\n'
TINY = {
    "CMakeLists.txt": b"add_library(tiny INTERFACE)\ntarget_include_directories(tiny INTERFACE .)\n",
    "tiny.h": b"inline int tiny() { return 40; }\n",
    "docs/words.txt": b"not for builds\n",
}
PROJECT = """\
[[project]]
name = "tiny"
repository = "https://host.invalid/tiny.git"
tag = "v1"
commit = "{commit}"
sha256 = "{sha256}"
without = ["docs/*"]
"""


def backend() -> str:
    """The small engine's build, with CMake in the place of the compiler."""
    begin, end = BACKEND.index("    objects = "), BACKEND.index("    lib = Path(")
    text = BACKEND[:begin] + STEPS + BACKEND[end:]
    begin, end = text.index("    made = sorted("), text.index("    version = f")
    copied = '    (lib / "vllm/_C.abi3.so").write_bytes((made / "lib_C.so").read_bytes())\n'
    return text[:begin] + copied + text[end:]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    source = UPSTREAM | {
        "backend.py": backend().encode(),
        "CMakeLists.txt": LISTS.encode(),
        "csrc/kernel.cpp": KERNEL.encode(),
    }
    base = {path: data for path, data in source.items() if path.startswith("vllm/")}
    return prepared(tmp_path_factory.mktemp("made"), partial(one_release, source=source, base=base))


@pytest.fixture
def bench(made: Prepared, tmp_path: Path) -> Iterator[Bench]:
    with made.bench(tmp_path) as bench:
        (tmp_path / "pins/builds.toml").write_text(BUILDS)
        pinned(bench)
        bench.run(*APPLY)
        yield bench


def pinned(bench: Bench) -> None:
    """A clone of the project beside the work, and its line in the user's own table."""
    repo = init_bare(clones(bench) / "tiny")
    changes = [Change(path=path, data=data) for path, data in TINY.items()]
    commit = repo.write_commits("refs/heads/main", None, [NewCommit(message="1", changes=changes)])
    with repo.reading() as read:
        entries = {p: e for p, e in repo.entries(commit[-1]).items() if p[:5] != "docs/"}
        sha256 = fetched.digest(entries, read)
    text = PROJECT.format(commit=commit[-1], sha256=sha256)
    (bench.root / "pins/thirdparty.toml").write_text(text)


def clones(bench: Bench) -> Path:
    return bench.root / "clones"


def test_cmake_takes_the_sources_of_another_project_from_a_clone(
    bench: Bench, tmp_path: Path
) -> None:
    done = bench.json(*BUILD, "--clones", str(clones(bench)))
    assert answer(Path(bench.root, done["path"]), tmp_path) == 42
    assert [one["name"] for one in done["compiled"]["fetched"]] == ["tiny"]
    assert bench.json("wheel", "verify")["passed"]
    # What is built is kept; what was handed over is part of what it depends on.
    assert bench.json(*BUILD, "--clones", str(clones(bench)))["cached"]
    table = bench.root / "pins/thirdparty.toml"
    commit = Repo(clones(bench) / "tiny").resolve("refs/heads/main") or ""
    table.write_text(table.read_text().replace(commit, "1" * 40))
    told = bench.run(*BUILD, "--clones", str(clones(bench)), code=errors.SourceBuildError.exit_code)
    assert "has not tiny v1" in told


def test_sources_that_cannot_be_had_or_are_others_end_before_anything_is_compiled(
    bench: Bench,
) -> None:
    told = bench.run(*BUILD, code=errors.SourceBuildError.exit_code)
    assert "tiny v1 could not be fetched" in told
    assert "--clones" in told
    table = bench.root / "pins/thirdparty.toml"
    lines = [
        f'sha256 = "{"0" * 64}"' if "sha256" in x else x for x in table.read_text().split("\n")
    ]
    table.write_text("\n".join(lines))
    told = bench.run(
        *BUILD, "--clones", str(clones(bench)), code=errors.HashMismatchError.exit_code
    )
    assert "not the pinned ones" in told
    assert not list(bench.root.glob("work/jobs/*/build/cpu/src/build"))


def test_what_no_table_knows_is_left_to_the_build(bench: Bench) -> None:
    (bench.root / "pins/thirdparty.toml").write_text("project = []\n")
    told = bench.run(*BUILD, code=errors.SourceBuildError.exit_code)
    assert "tiny v1 of https://host.invalid/tiny.git is left to the build to fetch" in told
    assert "Upstream's build failed" in told
    assert "FETCHCONTENT_SOURCE_DIR" in told
    # The user's own folder for it is nobody else's business.
    own = f"-DFETCHCONTENT_SOURCE_DIR_TINY={bench.root}"
    assert "is left" not in bench.run(
        *BUILD, code=errors.SourceBuildError.exit_code, CMAKE_ARGS=own
    )
