"""Extensions of our own: declared, compiled with what is here, and refused where they would break a promise."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from dspatch import extensionspec, tomlfile
from dspatch.errors import MissingToolsError, NativeSourceError, PatchFormatError, SourceBuildError
from dspatch.extensionspec import Extension, Unit
from dspatch.wheel.extension import Compiler, compiled, compiler_for
from dspatch.wheel.overlay import build_overlay
from tests.unit import wheelkit

PATH = "mini/own/answer.so"
SOURCES = {
    "mini/own/answer.h": b"int other();\n",
    "mini/own/answer.cpp": b'#include "answer.h"\n'
    b'extern "C" __attribute__((visibility("default"))) int answer() { return other() + ONE; }\n',
    "mini/own/other.cpp": b'#include "answer.h"\nint other() { return 41; }\n',
}
OWN = Extension(
    path=PATH,
    compiler=Version("9"),
    units=(
        Unit(source="mini/own/answer.cpp", flags=("-DONE=1",)),
        Unit(source="mini/own/other.cpp"),
        Unit(source="mini/own/none.cpp", machines=("pdp11",)),
    ),
    flags=("-O2",),
)


@pytest.fixture
def base() -> str:
    return wheelkit.BASE_NAME.replace("x86_64", compiler_for([OWN]).machine)


def make(sources: dict[str, bytes], base: str, dest: Path, own: Extension = OWN) -> Path:
    return compiled(own, sources, compiler_for([own]), base, dest)


def test_an_extension_is_compiled_and_runs(base: str, tmp_path: Path) -> None:
    made = make(SOURCES, base, tmp_path / "a" / "answer.so")
    assert ctypes.CDLL(str(made)).answer() == 42
    assert [path.name for path in made.parent.iterdir()] == ["answer.so"]


def test_the_same_sources_give_the_same_bytes(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(SOURCES, base, tmp_path / "a.so").read_bytes()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert make(SOURCES, base, tmp_path / "b.so").read_bytes() == one


def test_what_does_not_compile_says_why_and_leaves_nothing(base: str, tmp_path: Path) -> None:
    sources = {**SOURCES, "mini/own/other.cpp": b"int other() { return fortyone; }\n"}
    with pytest.raises(SourceBuildError) as caught:
        make(sources, base, tmp_path / "answer.so")
    assert "fortyone" in caught.value.why
    assert "--without-extensions" in caught.value.next
    assert not list(tmp_path.iterdir())


def test_what_is_used_and_not_there_is_refused_when_linking(base: str, tmp_path: Path) -> None:
    sources = {**SOURCES, "mini/own/other.cpp": b"int more(); int other() { return more(); }\n"}
    with pytest.raises(SourceBuildError, match="could not be compiled"):
        make(sources, base, tmp_path / "answer.so")


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        (b"#include <string>\nint other() { return std::to_string(41).size(); }\n", "libstdc++"),
        (b"#include <math.h>\nint other() { volatile double x = 4; return pow(x, x); }\n", "GLIBC"),
    ],
)
def test_more_than_the_base_wheel_promises_is_refused(
    body: bytes, needs: str, tmp_path: Path
) -> None:
    own = replace(OWN, libraries=("m",))
    base = f"mini_cpu-1.0-cp38-abi3-manylinux_2_5_{compiler_for([own]).machine}.whl"
    sources = {**SOURCES, "mini/own/other.cpp": body}
    with pytest.raises(SourceBuildError, match="does not promise") as caught:
        make(sources, base, tmp_path / "answer.so", own)
    assert needs in caught.value.what


def test_what_the_base_wheel_needs_anyway_may_be_needed(tmp_path: Path) -> None:
    own = replace(OWN, libraries=("m",))
    compiler = compiler_for([own])
    base = f"mini_cpu-1.0-cp38-abi3-manylinux_2_5_{compiler.machine}.whl"
    body = b"#include <math.h>\nint other() { volatile double x = 4; return pow(x, x); }\n"
    sources = {**SOURCES, "mini/own/other.cpp": body}
    assert compiled(own, sources, compiler, base, tmp_path / "answer.so", "2.32").is_file()
    with pytest.raises(SourceBuildError, match=r"needs GLIBC 2\.\d+, which its wheel"):
        compiled(own, sources, compiler, base, tmp_path / "other.so", "2.6")


def test_a_wheel_for_another_machine_is_refused(tmp_path: Path) -> None:
    base = "mini_cpu-1.0-cp38-abi3-manylinux_2_17_s390x.whl"
    with pytest.raises(MissingToolsError, match="cannot be compiled on"):
        make(SOURCES, base, tmp_path / "answer.so")


def test_no_compiler_is_told_with_every_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-of-nowhere")
    with pytest.raises(MissingToolsError) as caught:
        compiler_for([OWN])
    assert "there is no g++-of-nowhere" in caught.value.what
    assert PATH in caught.value.why
    assert "--without-extensions" in caught.value.next


def test_a_compiler_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho 4.8.5\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(MissingToolsError) as caught:
        compiler_for([OWN, replace(OWN, compiler=Version("11"))])
    assert f"need g++ 11 or newer, and {old} is 4.8.5" in caught.value.what


def test_the_compiler_is_part_of_what_a_wheel_is() -> None:
    one = Compiler(program="g++", version=Version("12.2"), machine="x86_64")
    assert one.name == "g++ 12.2 for x86_64"
    assert one.name != replace(one, version=Version("13")).name


GOOD = """
[[extension]]
path = "mini/own/answer.so"
compiler = "9"
units = [{ source = "mini/own/answer.cpp" }]
"""


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("answer.so", "answer.dll", "must end in .so"),
        ('"9"', '"new"', "must be a version of g++"),
        ("mini/own/answer.cpp", "../answer.cpp", "a path in a folder of the tree"),
        ("mini/own/answer.cpp", "/answer.cpp", "a path in a folder of the tree"),
        ("mini/own/answer.cpp", "answer.cpp", "a path in a folder of the tree"),
        ("source", "sauce", "unknown key `sauce`"),
        ("compiler", "compilr", "unknown key `compilr`"),
        ('[{ source = "mini/own/answer.cpp" }]', "[]", "must be tables"),
        ('[{ source = "mini/own/answer.cpp" }]', '["answer.cpp"]', "must be tables"),
    ],
)
def test_what_is_wrong_with_a_declaration_is_told_with_its_line(
    right: str, wrong: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "patch.toml"
    path.write_text(GOOD)
    source = tomlfile.load(path, PatchFormatError)
    assert len(extensionspec.read(source, source.data)) == 1
    path.write_text(GOOD.replace(right, wrong))
    source = tomlfile.load(path, PatchFormatError)
    with pytest.raises(PatchFormatError, match=r"patch\.toml, line \d") as caught:
        extensionspec.read(source, source.data)
    assert expected in caught.value.what


def test_sources_of_an_extension_may_be_added_to_an_overlay(tmp_path: Path) -> None:
    wheel = wheelkit.base_wheel(tmp_path)
    changes: dict[str, bytes | None] = {**SOURCES}
    plan = wheelkit.plan(wheel, changes=changes, patches=(wheelkit.patch("own", changes),))
    with pytest.raises(NativeSourceError):
        build_overlay(plan, tmp_path / "dist")
    built = build_overlay(replace(plan, extension_sources=frozenset(changes)), tmp_path / "dist")
    assert {c.path: c.change for c in built.changes}["mini/own/other.cpp"] == "added"


def test_upstream_s_own_source_is_never_one_of_an_extension(tmp_path: Path) -> None:
    wheel = wheelkit.base_wheel(tmp_path)
    changes: dict[str, bytes | None] = {"csrc/kernel.cpp": b"int answer() { return 43; }\n"}
    plan = wheelkit.plan(wheel, changes=changes, patches=(wheelkit.patch("own", changes),))
    with pytest.raises(NativeSourceError):
        build_overlay(replace(plan, extension_sources=frozenset(changes)), tmp_path / "dist")
