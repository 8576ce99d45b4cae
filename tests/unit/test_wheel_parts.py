"""The smaller parts of dspatch.wheel: raw copies, RECORD, differences, native sources, files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.errors import BaseDiffersError, NativeSourceError, WheelError
from dspatch.wheel import rawzip
from dspatch.wheel.difference import accept
from dspatch.wheel.files import FolderFiles
from dspatch.wheel.native import diff_paths, is_native, refuse_native
from dspatch.wheel.plan import Accepted, Difference
from dspatch.wheel.rawzip import copy_member, same_raw, write_member
from dspatch.wheel.record import Entry, entry_of, read_record, write_record
from tests.unit import wheelkit

PATHS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\\"),
    min_size=1,
    max_size=20,
)


def copied(source: bytes, names: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(source)) as old, zipfile.ZipFile(made, "w") as new:
        for before, after in names.items():
            copy_member(old, old.getinfo(before), new, after)
        write_member(new, "own", b"own", epoch=wheelkit.EPOCH, mode=0o644)
    return made.getvalue()


class Unseekable(io.RawIOBase):
    """A sink that makes zipfile write data descriptors."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        assert isinstance(data, bytes | memoryview)
        return self.buffer.write(data)


def test_members_with_data_descriptors_are_copied_without_them() -> None:
    sink = Unseekable()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a", b"a" * 1000)
        made.writestr("b", b"b" * 1000)
    with zipfile.ZipFile(io.BytesIO(sink.buffer.getvalue())) as archive:
        assert archive.getinfo("a").flag_bits & 8
    data = copied(sink.buffer.getvalue(), {"a": "a", "b": "b"})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert not archive.getinfo("a").flag_bits & 8
        assert archive.testzip() is None
        assert archive.read("b") == b"b" * 1000


def test_a_member_with_64_bit_sizes_is_copied() -> None:
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w") as made, made.open("big", "w", force_zip64=True) as stream:
        stream.write(b"x" * 100)
    data = copied(source.getvalue(), {"big": "renamed"})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("renamed") == b"x" * 100


def test_an_archive_past_four_gib_is_written_with_64_bit_offsets(tmp_path: Path) -> None:
    """A hole in a sparse file stands for the gibibytes."""
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a", b"a" * 1000)
    path = tmp_path / "huge.zip"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        new.start_dir = 5 << 30
        copy_member(old, old.getinfo("a"), new, "a")
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("a").header_offset == 5 << 30
        assert archive.read("a") == b"a" * 1000


def test_a_name_beyond_ascii_is_copied_and_renamed() -> None:
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w") as made:
        made.writestr("é", b"1")
        made.writestr("plain", b"2")
    data = copied(source.getvalue(), {"é": "è", "plain": "ø"})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == ["è", "ø", "own"]
        assert archive.testzip() is None


def test_a_member_cut_short_is_refused() -> None:
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w") as made:
        made.writestr("a", b"a" * 1000)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(io.BytesIO(), "w") as new:
        info = old.getinfo("a")
        info.compress_size = 10_000
        with pytest.raises(WheelError, match="ends inside"):
            copy_member(old, info, new, "a")


@pytest.mark.parametrize("offset", [5, 10_000])
def test_a_member_without_its_header_is_refused(offset: int) -> None:
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w") as made:
        made.writestr("a", b"a" * 1000)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(io.BytesIO(), "w") as new:
        info = old.getinfo("a")
        info.header_offset = offset
        with pytest.raises(WheelError, match="cannot be read"):
            copy_member(old, info, new, "a")


def test_raw_bytes_are_compared_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawzip, "CHUNK", 7)
    one, other = io.BytesIO(), io.BytesIO()
    for sink, last in ((one, b"x"), (other, b"y")):
        with zipfile.ZipFile(sink, "w") as made:
            made.writestr("same", b"0" * 100)
            made.writestr("last", b"0" * 99 + last)
    with zipfile.ZipFile(one) as left, zipfile.ZipFile(other) as right:
        assert same_raw(left, left.getinfo("same"), right, right.getinfo("same"))
        assert not same_raw(left, left.getinfo("last"), right, right.getinfo("last"))


@given(st.dictionaries(PATHS, st.binary(max_size=30), max_size=8))
def test_a_record_reads_back_as_it_was_written(members: dict[str, bytes]) -> None:
    rows = {path: entry_of(data) for path, data in members.items()}
    rows.pop("RECORD", None)
    assert read_record(write_record(rows, "RECORD").decode()) == {**rows, "RECORD": None}


def test_a_record_quotes_what_csv_must_quote() -> None:
    row = {'a,"b".py': Entry(sha256="00" * 32, size=1)}
    assert write_record(row, "RECORD").decode().splitlines()[1] == (
        '"a,""b"".py",sha256=' + "A" * 43 + ",1"
    )


def test_the_first_rule_that_matches_explains() -> None:
    items = [Difference(path="a/b.so", kind="base-only"), Difference(path="a/x.py", kind="differs")]
    rules = [
        Accepted(path="a/b.so", reason="first", drop=True),
        Accepted(path="*.so", reason="second"),
        Accepted(path="a/*", reason="third", drop=True),
    ]
    explained = accept(items, rules, "base.whl")
    assert [(item.reason, item.rule, item.drop) for item in explained] == [
        ("first", "a/b.so", True),
        ("third", "a/*", False),
    ]


def test_many_unexplained_differences_are_counted() -> None:
    items = [Difference(path=f"a/{at:02}.py", kind="base-only") for at in range(25)]
    with pytest.raises(BaseDiffersError, match="25 unexplained") as caught:
        accept(items, [], "base.whl")
    assert "… and 5 more" in caught.value.why


@pytest.mark.parametrize(
    "path",
    [
        "csrc/cpu/pos_encoding.cpp",
        "csrc/README.md",
        "cmake/utils.cmake",
        "CMakeLists.txt",
        "vllm/a/CMakeLists.txt",
        "rust/src/lib.rs",
        "vllm/kernels/x.CU",
        "vllm/x.h",
        "setup.py",
        "pyproject.toml",
    ],
)
def test_native(path: str) -> None:
    assert is_native(path)


@pytest.mark.parametrize(
    "path", ["vllm/a.py", "vllm/csrc.py", "vllm/x.json", "tests/h", "vllm/a.hpy"]
)
def test_not_native(path: str) -> None:
    assert not is_native(path)


def test_native_files_and_their_patches_are_named() -> None:
    changes = {f"csrc/{at:02}.cpp": b"x\n" for at in range(12)}
    patches = [wheelkit.patch("kernels", changes), wheelkit.patch("other", {"a.py": b""})]
    with pytest.raises(NativeSourceError) as caught:
        refuse_native([*changes, "a.py"], patches)
    assert "csrc/00.cpp" in caught.value.what
    assert "and 2 more" in caught.value.what
    assert "kernels: " in caught.value.why
    assert "other" not in caught.value.why


def test_the_paths_of_a_diff_are_its_headers_only() -> None:
    diff = (
        "diff --git a/a b.py b/a b.py\n--- a/a b.py\n+++ b/a b.py\n@@ -1 +1,2 @@\n"
        "-x\n+diff --git a/no.py b/no.py\n+++ b/no2.py\n diff --git a/n b/n\n"
        "diff --git a/old.py b/new.py\nsimilarity index 100%\n"
        "rename from old.py\nrename to new.py\n"
    )
    assert diff_paths(diff) == {"a b.py", "old.py", "new.py"}


def test_a_folder_is_a_mapping_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.py").write_bytes(b"b")
    (tmp_path / "c.py").write_bytes(b"c")
    (tmp_path / "link").symlink_to("c.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_bytes(b"")
    files = FolderFiles(tmp_path)
    assert dict(files) == {"a/b.py": b"b", "c.py": b"c"}
    assert len(files) == 2
    assert "../x" not in files
    assert files.get(".git/config") is None
