"""dspatch.wheel.fatbin: architectures read from fatbinaries, made here byte by byte and by nvcc."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.errors import SourceBuildError
from dspatch.wheel import fatbin
from dspatch.wheel.source import archs

ELF, PTX = 2, 1
LOG = Path("build.log")


def entry(kind: int, arch: int, data: bytes = b"\x7fELF cubin") -> bytes:
    head = struct.pack("<HHIQ", kind, 0x101, 64, len(data)) + bytes(12) + struct.pack("<I", arch)
    return head.ljust(64, b"\0") + data


def fatbinary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def wheel(folder: Path, **members: bytes) -> Path:
    path = folder / "engine-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"engine/{name.replace('__', '.')}", data)
    return path


@given(around=st.binary(max_size=40), known=st.lists(st.integers(50, 130), max_size=4))
def test_every_architecture_of_machine_code_is_read(around: bytes, known: list[int]) -> None:
    fat = fatbinary(*(entry(ELF, arch) for arch in known), entry(PTX, 150))
    # Four bytes that look like a fatbinary's begin one nowhere.
    data = around + b"\x50\xed\x55\xba" + around + fat + around + fatbinary(entry(ELF, 61))
    assert fatbin.architectures(data) == {*known, 61}


@given(st.binary(max_size=200), st.integers(0, 200))
def test_what_is_cut_or_no_fatbinary_is_read_to_its_end(noise: bytes, cut: int) -> None:
    assert not fatbin.architectures(noise)
    fatbin.architectures(fatbinary(entry(ELF, 90), noise)[:cut])
    fatbin.architectures(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(noise)) + noise)


def test_a_wheel_without_an_architecture_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    """CMake files of vLLM 0.4.2 drop 9.0a, and nvcc 13 then compiles for 75."""
    made = wheel(tmp_path, _C__so=fatbinary(entry(ELF, 75), entry(PTX, 90)), _D__so=b"ELF")
    with pytest.raises(SourceBuildError, match="compiled nothing for 90a") as caught:
        archs.check_made(made, ["9.0a", "75"], LOG)
    assert "machine code is for 75" in caught.value.why
    archs.check_made(made, [], LOG)
    members = {"_C__so": fatbinary(entry(ELF, 75)), "_D__abi3__so": fatbinary(entry(ELF, 90))}
    archs.check_made(wheel(tmp_path, **members), ["90a", "7.5"], LOG)


def test_machine_code_outside_of_compiled_members_does_not_count(tmp_path: Path) -> None:
    made = wheel(tmp_path, kernel__txt=fatbinary(entry(ELF, 90)), _C__so=b"")
    with pytest.raises(SourceBuildError, match="for 90") as caught:
        archs.check_made(made, ["90"], LOG)
    assert "no architecture" in caught.value.why


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_s_own_objects_are_read(tmp_path: Path) -> None:
    source, made = tmp_path / "kernel.cu", tmp_path / "kernel.o"
    source.write_text("__global__ void kernel(float* x) { x[threadIdx.x] += 1; }\n")
    codes = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a"]
    ptx = ["-gencode=arch=compute_100,code=compute_100"]
    subprocess.run(["nvcc", *codes, *ptx, "-c", source, "-o", made], check=True)
    assert fatbin.architectures(made.read_bytes()) == {80, 90}
