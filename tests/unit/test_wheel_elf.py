"""dspatch.wheel.elf: needs read from shared objects that gcc made, with symbol versions of ours."""

from __future__ import annotations

import ctypes.util
import subprocess
import zipfile
from pathlib import Path

import pytest

from dspatch.errors import WheelError
from dspatch.wheel.elf import exports, object_needs, provided_versions, wheel_needs

PROVIDER = "int old(void) { return 1; }\nint latest(void) { return 2; }\n"
VERSIONS = """
GLIBCXX_3.4.9 { global: old; local: *; };
GLIBCXX_3.4.32 { global: latest; } GLIBCXX_3.4.9;
GLIBCXX_TUNABLES { };
CXXABI_1.3.15 { };
"""
USER = "int old(void); int latest(void); int use(void) { return old() + latest(); }\n"


def compile_object(folder: Path, name: str, code: str, *flags: str) -> Path:
    """A shared object of this C code."""
    source = folder / f"{name}.c"
    source.write_text(code)
    made = folder / name
    command: list[str | Path] = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", made, source, *flags]
    subprocess.run(command, check=True, cwd=folder)
    return made


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provider")
    (folder / "versions").write_text(VERSIONS)
    flags = ("-Wl,--version-script=versions", "-Wl,-soname,libstdc++.so.6")
    return compile_object(folder, "libstdc++.so.6", PROVIDER, *flags)


@pytest.fixture(scope="module")
def user(provider: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_object(tmp_path_factory.mktemp("user"), "_C.abi3.so", USER, str(provider))


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_a_library_exports_what_it_defines_not_what_it_uses(style: str, tmp_path: Path) -> None:
    code = "int used(void); int defined(void) { return used(); }\n"
    library = compile_object(tmp_path, "lib.so", code, f"-Wl,--hash-style={style}")
    assert exports(library, "defined")
    assert not exports(library, "used")
    assert not exports(library, "nowhere")


def test_what_is_no_elf_or_a_cut_one_exports_nothing(provider: Path, tmp_path: Path) -> None:
    whole, place = provider.read_bytes(), tmp_path / "lib.so"
    for size in (0, 3, 40, 100, len(whole) - 200):
        place.write_bytes(whole[:size])
        assert not exports(place, "latest")
    assert not exports(tmp_path / "nowhere.so", "latest")


def test_a_library_provides_the_highest_version_that_it_defines(provider: Path) -> None:
    assert provided_versions(provider) == {"GLIBCXX": (3, 4, 32), "CXXABI": (1, 3, 15)}


def test_an_object_needs_the_highest_version_that_it_uses(user: Path) -> None:
    needs = object_needs(user)
    assert needs.glibcxx == (3, 4, 32)
    assert needs.glibc is None
    assert needs.cxxabi is None
    assert needs.libraries == ("libstdc++.so.6",)


def test_versions_are_ordered_as_numbers(provider: Path, tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("GLIBC_2.9 { global: a; };\nGLIBC_2.10 { global: b; };\n")
    code = "int a(void) { return 1; }\nint b(void) { return 2; }\n"
    made = compile_object(tmp_path, "libc.so.6", code, "-Wl,--version-script=versions")
    assert provided_versions(made) == {"GLIBC": (2, 10)}


def test_an_object_without_versions_needs_none(tmp_path: Path) -> None:
    needs = object_needs(compile_object(tmp_path, "plain.so", "int f(void) { return 1; }\n"))
    assert (needs.glibc, needs.glibcxx, needs.cxxabi, needs.libraries) == (None, None, None, ())
    assert provided_versions(tmp_path / "plain.so") == {}


def test_the_machine_is_named_as_the_kernel_names_it(user: Path) -> None:
    uname = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True)
    assert object_needs(user).machine == uname.stdout.strip()


def test_every_object_of_a_wheel_is_read_and_nothing_else(user: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "mini-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.write(user, "mini/_C.abi3.so")
        made.write(user, "mini.libs/libx.so.1.2")
        made.writestr("mini/notes.so.txt", "not an object")
    needs = wheel_needs(wheel)
    assert [need.path for need in needs] == ["mini/_C.abi3.so", "mini.libs/libx.so.1.2"]
    assert {need.glibcxx for need in needs} == {(3, 4, 32)}


def test_what_the_wheel_brings_along_is_no_need(user: Path, provider: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "mini-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.write(user, "mini/_C.abi3.so")
        made.write(provider, "mini.libs/libstdc++.so.6")
    assert wheel_needs(wheel)[0].glibcxx is None


@pytest.mark.parametrize("data", [b"", b"no ELF at all", b"\x7fELF\x02\x01\x01" + b"\0" * 20])
def test_an_object_that_is_no_elf_file_is_refused(tmp_path: Path, data: bytes) -> None:
    wheel = tmp_path / "mini-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("mini/_C.abi3.so", data)
    with pytest.raises(WheelError, match=r"mini/_C\.abi3\.so"):
        wheel_needs(wheel)


def test_a_truncated_object_is_refused(user: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.so"
    cut.write_bytes(user.read_bytes()[:-200])
    with pytest.raises(WheelError):
        object_needs(cut)


def test_this_systems_own_libstdcxx_is_read() -> None:
    assert ctypes.util.find_library("stdc++") is not None
    from dspatch.wheel.machine import this_machine

    assert (this_machine().glibcxx or ()) > (3, 4, 20)
