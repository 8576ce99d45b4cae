"""Sources of other projects that a build fetches: what CMake files declare, and how they are had."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from dspatch.engines import silent
from dspatch.errors import HashMismatchError, MissingToolsError, PinError, SourceBuildError
from dspatch.git import Change as Bytes
from dspatch.git import NewCommit, Repo, init_bare
from dspatch.wheel.source import archs, declared, fetched, needs, preflight, thirdparty
from dspatch.wheel.source.declared import Declared
from dspatch.wheel.source.recipe import recipe
from dspatch.wheel.source.thirdparty import Project

CMAKE = """
cmake_minimum_required(VERSION 3.25 FATAL_ERROR)
FetchContent_Declare(
  repo-one
  GIT_REPOSITORY https://host.invalid/a/one.git
  GIT_TAG        v1.0  # not v0.9
  GIT_SHALLOW    ON
)
#  FetchContent_Declare(never GIT_REPOSITORY x GIT_TAG y)
fetchcontent_declare(two GIT_TAG "abc" GIT_REPOSITORY "https://host.invalid/two")
FetchContent_Declare(archive URL https://host.invalid/three.tar.gz)
FetchContent_Declare(two GIT_REPOSITORY https://host.invalid/two GIT_TAG abc)
"""
ONE = Declared(name="repo-one", repository="https://host.invalid/a/one.git", tag="v1.0")


def test_what_a_build_fetches_is_read_from_its_cmake_files() -> None:
    found = declared.declared([CMAKE, ""])
    two = Declared(name="two", repository="https://host.invalid/two", tag="abc")
    assert found == (ONE, two)
    assert ONE.variable == "FETCHCONTENT_SOURCE_DIR_REPO-ONE"
    assert declared.minimum(CMAKE) == "3.25"
    assert declared.minimum("# cmake_minimum_required(VERSION 3.1)") is None
    assert [declared.is_cmake(p) for p in ("a/CMakeLists.txt", "b.cmake", "cmake.py")] == [1, 1, 0]


def test_every_shipped_project_is_whole() -> None:
    rows = thirdparty.table()
    assert len({(one.name, one.tag) for one in rows}) == len(rows) > 5
    for one in rows:
        assert int(one.commit, 16) >= 0 <= int(one.sha256, 16)
        assert all(name in {row.name for row in rows} for name in one.submodules.values())
    tag = Declared(
        name="repo-cutlass", repository="https://GitHub.com/NVIDIA/cutlass", tag="v3.9.2"
    )
    found = thirdparty.pinned(tag)
    assert found is not None
    assert found.name == "cutlass"
    assert thirdparty.pinned(ONE) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[project]]\nname = "a"\n', "`repository`"),
        ('[[project]]\nname = "a"\nspeed = 1\n', "unknown key `speed`"),
        (
            '[[project]]\nname = "a"\nrepository = "b"\ntag = "c"\ncommit = "d"\nsha256 = "e"\n',
            "40 digits",
        ),
        ('project = ["cutlass"]\n', "`project` must be tables"),
        (
            f'[[project]]\nname = "a"\nrepository = "b"\ntag = "c"\ncommit = "{"0" * 40}"\n'
            f'sha256 = "{"0" * 64}"\nwithout = [1]\n',
            "`without` must be a list of strings",
        ),
    ],
)
def test_a_table_with_a_fault_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPATCH_PINS", str(tmp_path))
    (tmp_path / "thirdparty.toml").write_text(text)
    with pytest.raises(PinError) as caught:
        thirdparty.table()
    assert "thirdparty.toml, line" in caught.value.what
    assert said in caught.value.what


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with a clone of one project, which has a README and a header."""
    folder = tmp_path / "clones"
    repo = init_bare(folder / "one")
    files = {"one.h": b"int one();\n", "docs/long.txt": b"words\n", "run.sh": b"true\n"}
    commit(repo, files)
    return folder


def commit(repo: Repo, files: dict[str, bytes]) -> str:
    changes = [Bytes(path=path, data=data) for path, data in files.items()]
    made = repo.write_commits("refs/heads/main", None, [NewCommit(message="one", changes=changes)])
    return made[-1]


def project(clones: Path, **changed: object) -> Project:
    repo = Repo(clones / "one")
    at = repo.resolve("refs/heads/main") or ""
    known = {
        "name": "one", "repository": ONE.repository, "tag": ONE.tag, "commit": at,
        "sha256": "0" * 64, "without": ("docs/*",), "submodules": {},
    }  # fmt: skip
    made = Project(**{**known, **changed})  # type: ignore[arg-type]
    if "sha256" in changed:
        return made
    with repo.reading() as read:
        found = fetched.digest(made.wanted(repo.entries(at)), read)
    return Project(**{**vars(made), "sha256": found})


def test_a_clone_is_read_where_it_lies_and_handed_over(clones: Path, tmp_path: Path) -> None:
    handed = fetched.put([(ONE, project(clones))], tmp_path / "put", clones, silent)
    assert (handed[0].folder / "one.h").read_bytes() == b"int one();\n"
    assert not (handed[0].folder / "docs").exists()
    path = fetched.toolchain(handed, tmp_path / "toolchain.cmake", "/own.cmake")
    assert path.read_text().splitlines() == [
        'include("/own.cmake")',
        f'set(FETCHCONTENT_SOURCE_DIR_REPO-ONE "{tmp_path}/put/repo-one" CACHE PATH "")',
    ]


def test_files_that_are_not_the_pinned_ones_are_refused(clones: Path, tmp_path: Path) -> None:
    with pytest.raises(HashMismatchError, match="of one") as caught:
        fetched.put([(ONE, project(clones, sha256="1" * 64))], tmp_path / "put", clones, silent)
    assert "expected 1111" in caught.value.why
    assert not (tmp_path / "put").exists()


@pytest.mark.parametrize("change", ["content", "mode", "name"])
def test_the_hash_sees_content_mode_and_name(change: str, clones: Path) -> None:
    repo = Repo(clones / "one")
    before = project(clones).sha256
    files = {"one.h": b"int one();\n", "docs/long.txt": b"words\n", "run.sh": b"true\n"}
    if change == "content":
        files["one.h"] = b"int two();\n"
    elif change == "name":
        files["other.h"] = files.pop("one.h")
    changes = [
        Bytes(
            path=path,
            data=data,
            mode="100755" if (change, path) == ("mode", "run.sh") else "100644",
        )
        for path, data in files.items()
    ]
    repo.write_commits("refs/heads/main", None, [NewCommit(message="two", changes=changes)])
    assert project(clones).sha256 != before


def test_a_clone_without_the_commit_says_how_to_get_it(clones: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceBuildError, match="has not one") as caught:
        fetched.put([(ONE, project(clones, commit="1" * 40, sha256="2" * 64))], tmp_path, clones, silent)  # fmt: skip
    assert f"git fetch {ONE.repository} {'1' * 40}" in caught.value.next


def test_what_cannot_be_fetched_says_what_to_do(
    clones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPATCH_CACHE", str(tmp_path / "cache"))
    gone = project(clones, repository=str(tmp_path / "gone"))
    other = Project(**{**vars(gone), "name": "two", "commit": "2" * 40})
    with pytest.raises(SourceBuildError, match="could not be fetched") as caught:
        fetched.put([(ONE, gone), (ONE, other)], tmp_path / "put", None, silent)
    assert "--clones" in caught.value.next
    assert caught.value.what.startswith("one v1.0, two v1.0 could")
    assert len(caught.value.why.splitlines()) == 2
    # By git, once into the cache: then the repository may be gone.
    here = project(clones, repository=str(clones / "one"))
    fetched.put([(ONE, here)], tmp_path / "put", None, silent)
    again = project(clones, repository=str(tmp_path / "gone"))
    fetched.put([(ONE, again)], tmp_path / "again", None, silent)
    assert (tmp_path / "again/repo-one/one.h").is_file()


def test_a_submodule_is_the_known_commit_of_a_known_project(clones: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceBuildError, match="has other at none"):
        fetched.put([(ONE, project(clones, submodules={"lib": "other"}))], tmp_path, clones, silent)


@pytest.mark.parametrize(
    ("names", "torch", "cmake"),
    [
        (["9.0a", "80", "sm_80"], "9.0a;8.0", "90a-real;80-real"),
        (["120"], "12.0", "120-real"),
        ([], None, None),
    ],
)
def test_architectures_are_written_as_each_build_reads_them(
    names: list[str], torch: str | None, cmake: str | None
) -> None:
    vllm, lmdeploy = recipe("vllm", "cuda"), recipe("lmdeploy", "cuda")
    assert archs.setting(vllm, names).get("TORCH_CUDA_ARCH_LIST") == torch
    assert archs.setting(lmdeploy, names).get("CUDAARCHS") == cmake


def test_what_is_no_architecture_or_none_of_this_build_is_refused() -> None:
    with pytest.raises(SourceBuildError, match="`hopper` is no"):
        archs.setting(recipe("lmdeploy", "cuda"), ["hopper"])
    with pytest.raises(SourceBuildError, match="for empty has no"):
        archs.setting(recipe("lmdeploy", "empty"), ["90"])


@pytest.mark.parametrize(("name", "known"), [("80", True), ("90a", True), ("70", False), ("80a", False)])  # fmt: skip
def test_nvcc_is_asked_what_it_compiles_for(name: str, known: bool, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nprintf 'sm_80\\nsm_90\\n'\n")
    nvcc.chmod(0o755)
    if known:
        return archs.check(str(nvcc), Version("13.0"), [name])
    with pytest.raises(MissingToolsError, match=f"13.0 does not compile for {name}"):
        archs.check(str(nvcc), Version("13.0"), [name])
    return None


def test_cmake_must_be_as_new_as_the_tree_asks() -> None:
    wanted = recipe("lmdeploy", "cuda")
    preflight.check_cmake(wanted, None, None)
    preflight.check_cmake(wanted, Version("3.25"), Version("3.25.1"))
    for found, said in ((None, "CMake 3.25 or newer"), (Version("3.22"), "this one is 3.22")):
        with pytest.raises(MissingToolsError) as caught:
            preflight.check_cmake(wanted, Version("3.25"), found)
        assert said in caught.value.why


def test_a_build_asks_for_what_its_requirement_files_name() -> None:
    files = {"requirements/build.txt": b"# tools\npybind11<=2.13.1  # newest\n\nsetuptools\n"}
    names = ["requirements/build.txt", "requirements/gone.txt"]
    assert list(needs.lines(files, names)) == ["pybind11<=2.13.1", "setuptools"]
    with pytest.raises(SourceBuildError, match="does not say"):
        list(needs.lines({"build.txt": b"-r other.txt\n"}, ["build.txt"]))
    with pytest.raises(SourceBuildError, match="does not ask for torch"):
        needs.refuse_torch(needs.requirements(None, "2.13.0"))
    needs.refuse_torch(["torch==2.13.0", "wheel"])
    assert recipe("lmdeploy", "cuda").needed(Version("13.0")) == ["nvidia-nccl-cu13"]


def test_python_alone_is_asked_of_lmdeploys_build_by_its_own_variable() -> None:
    assert recipe("lmdeploy", "empty").environment(version="1", jobs=3) == {
        "CMAKE_BUILD_PARALLEL_LEVEL": "3",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "DISABLE_TURBOMIND": "1",
    }
    assert "DISABLE_TURBOMIND" not in recipe("lmdeploy", "cuda").environment(version="1", jobs=3)


def test_a_tag_that_a_variable_holds_is_found() -> None:
    text = (
        'set(DEFAULT_TAG "v3.5.0")\nset(OTHER ${DEFAULT_TAG})\n# set(REVISION "v1")\n'
        "set(REVISION v4.2.1)\n"
        "FetchContent_Declare(cutlass GIT_REPOSITORY https://h/cutlass.git GIT_TAG ${REVISION})\n"
        'FetchContent_Declare(kernels GIT_REPOSITORY "https://h/k.git" GIT_TAG ${DEFAULT_TAG})\n'
        "FetchContent_Declare(unknown GIT_REPOSITORY https://h/u.git GIT_TAG ${NOWHERE})\n"
    )
    found = {one.name: one.tag for one in declared.declared([text])}
    assert found == {"cutlass": "v4.2.1", "kernels": "v3.5.0", "unknown": "${NOWHERE}"}
