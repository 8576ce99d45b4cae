"""dspatch.wheel.compatible and machine: a base wheel held against what a machine offers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from dspatch.errors import IncompatibleBaseError, ProcessError, WheelError
from dspatch.wheel.compatible import check_base, check_needs, check_tags
from dspatch.wheel.elf import Needs
from dspatch.wheel.machine import Machine, this_machine
from tests.unit import wheelkit
from tests.unit.test_wheel_elf import USER, compile_object

BOOKWORM = Machine(
    python=(3, 11, 2),
    arch="x86_64",
    platforms=("manylinux_2_36_x86_64", "manylinux_2_28_x86_64", "linux_x86_64"),
    glibc=(2, 36),
    glibcxx=(3, 4, 30),
    cxxabi=(1, 3, 13),
    libstdcxx="/usr/lib/libstdc++.so.6",
)
FITTING = Needs(
    path="mini/_C.abi3.so",
    machine="x86_64",
    glibc=(2, 28),
    glibcxx=(3, 4, 30),
    cxxabi=None,
    libraries=(),
)


def needs(**fields: object) -> Needs:
    return Needs(**{**FITTING.__dict__, **fields})


def test_what_fits_passes() -> None:
    check_tags("mini-1-cp38-abi3-manylinux_2_28_x86_64.whl", ">=3.10,<3.15", BOOKWORM)
    check_tags("mini-1-py3-none-any.whl", None, BOOKWORM)
    check_needs("mini.whl", [FITTING], BOOKWORM)


@pytest.mark.parametrize(
    ("filename", "requires", "named"),
    [
        ("mini-1-cp312-cp312-manylinux_2_28_x86_64.whl", None, ("cp312-cp312", "3.11.2")),
        ("mini-1-cp38-abi3-manylinux_2_28_aarch64.whl", None, ("aarch64", "manylinux_2_36_x86_64")),
        ("mini-1-cp38-abi3-manylinux_2_39_x86_64.whl", None, ("manylinux_2_39", "manylinux_2_36")),
        ("mini-1-cp38-abi3-macosx_11_0_arm64.whl", None, ("macosx_11_0", "manylinux_2_36")),
        ("mini-1-py3-none-any.whl", ">=3.12", (">=3.12", "3.11.2")),
        ("mini-1-py3-none-any.whl", "<3.11", ("<3.11", "3.11.2")),
    ],
)
def test_another_python_or_platform_is_refused_with_both(
    filename: str, requires: str | None, named: tuple[str, str]
) -> None:
    with pytest.raises(IncompatibleBaseError) as caught:
        check_tags(filename, requires, BOOKWORM)
    assert all(part in caught.value.why for part in named)


@pytest.mark.parametrize(
    ("need", "named"),
    [
        (needs(glibc=(2, 38)), ("GLIBC_2.38", "GLIBC_2.36")),
        (needs(glibcxx=(3, 4, 32)), ("GLIBCXX_3.4.32", "GLIBCXX_3.4.30")),
        (needs(cxxabi=(1, 3, 15)), ("CXXABI_1.3.15", "CXXABI_1.3.13")),
        (needs(machine="aarch64"), ("aarch64", "x86_64")),
    ],
)
def test_a_need_above_the_machine_is_refused_with_both_numbers(
    need: Needs, named: tuple[str, str]
) -> None:
    with pytest.raises(IncompatibleBaseError) as caught:
        check_needs("mini.whl", [FITTING, need], BOOKWORM)
    assert all(part in caught.value.why for part in (need.path, *named))


def test_a_machine_without_the_library_is_named_so() -> None:
    bare = Machine(**{**BOOKWORM.__dict__, "glibc": None, "glibcxx": None, "libstdcxx": ""})
    with pytest.raises(IncompatibleBaseError, match="no GLIBCXX"):
        check_needs("mini.whl", [FITTING], bare)


def test_a_malformed_requires_python_is_a_wheel_error() -> None:
    with pytest.raises(WheelError):
        check_tags("mini-1-py3-none-any.whl", "three or so", BOOKWORM)


def test_a_wheel_linked_with_a_newer_libstdcxx_than_its_tag_promises(tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("GLIBCXX_9.9.9 { global: old; latest; };\n")
    provider = compile_object(
        tmp_path,
        "libstdc++.so.6",
        "int old(void) { return 1; }\nint latest(void) { return 2; }\n",
        "-Wl,--version-script=versions",
        "-Wl,-soname,libstdc++.so.6",
    )
    compiled = compile_object(tmp_path, "_C.so", USER, str(provider)).read_bytes()
    base = wheelkit.base_wheel(tmp_path / "b", {**wheelkit.BASE, "mini/_C.abi3.so": compiled})
    with pytest.raises(IncompatibleBaseError, match=r"GLIBCXX_9\.9\.9, this machine has GLIBCXX_"):
        check_base(base)


def test_this_machine_has_the_tags_of_the_python_that_runs() -> None:
    here = this_machine()
    assert here.python == sys.version_info[:3]
    assert set(sys_tags()) <= here.supported_tags()
    assert this_machine(Path(sys.executable)) == here


def test_a_python_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessError):
        this_machine(tmp_path / "python")
    with pytest.raises(ProcessError, match="does not answer"):
        this_machine(Path("/bin/echo"))
