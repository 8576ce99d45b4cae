"""dspatch.archive: what streams out of an archive, and what is refused."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch import archiveguard
from dspatch.archive import Member, extract_sdist, sdist_members, wheel_members
from dspatch.errors import UnsafeArchiveError

TOP = "engine-1.0"


def entry(name: str, data: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", type=tarfile.SYMTYPE, linkname=target)


def sdist(folder: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    path = folder / f"{TOP}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return path


def wheel(folder: Path, **members: bytes) -> Path:
    path = folder / "engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def test_sdist_members_stream_without_their_top_folder(tmp_path: Path) -> None:
    path = sdist(
        tmp_path,
        entry(TOP, b"", type=tarfile.DIRTYPE),
        entry(f"{TOP}/setup.py", b"setup"),
        entry(f"{TOP}/tools/run.sh", b"run", mode=0o775),
        link(f"{TOP}/tools/latest", "../setup.py"),
    )
    assert list(sdist_members(path)) == [
        Member(path="setup.py", mode=0o644, data=b"setup"),
        Member(path="tools/run.sh", mode=0o755, data=b"run"),
        Member(path="tools/latest", mode=0o644, data=b"", link="../setup.py"),
    ]


def test_a_leading_dot_folder_is_read_through(tmp_path: Path) -> None:
    path = sdist(tmp_path, entry(f"./{TOP}/a.py", b"a"))
    assert [member.path for member in sdist_members(path)] == ["a.py"]


def test_extracted_sdist_has_its_files_modes_and_links(tmp_path: Path) -> None:
    path = sdist(
        tmp_path,
        entry(f"{TOP}/run.sh", b"run", mode=0o700),
        entry(f"{TOP}/a/b.py", b"b", mode=0o600),
        link(f"{TOP}/a/c.py", "b.py"),
    )
    dest = tmp_path / "out" / "tree"
    extract_sdist(path, dest)
    assert (dest / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (dest / "a/b.py").stat().st_mode & 0o777 == 0o644
    assert (dest / "a/c.py").is_symlink()
    assert (dest / "a/c.py").read_bytes() == b"b"


REFUSED = {
    "absolute": [entry("/etc/passwd")],
    "drive": [entry("C:/windows/x")],
    "climbs": [entry(f"{TOP}/../../outside")],
    "backslash": [entry(f"{TOP}/a\\..\\b")],
    "newline": [entry(f"{TOP}/a\nb")],
    "empty part": [entry(f"{TOP}//a")],
    "git directory": [entry(f"{TOP}/.git/hooks/post-checkout")],
    "git directory in capitals": [entry(f"{TOP}/sub/.GIT/config")],
    "two top folders": [entry(f"{TOP}/a"), entry("other/a")],
    "twice": [entry(f"{TOP}/a"), entry(f"{TOP}/a", b"other")],
    "file and folder": [entry(f"{TOP}/a"), entry(f"{TOP}/a/b")],
    "folder and file": [entry(f"{TOP}/a/b"), entry(f"{TOP}/a")],
    "link out": [link(f"{TOP}/a", "../outside")],
    "absolute link": [link(f"{TOP}/a", "/etc/passwd")],
    "link out by a detour": [link(f"{TOP}/d/a", "b/../../../outside")],
    "empty link": [link(f"{TOP}/a", "")],
    "link to a git directory": [link(f"{TOP}/a", ".git/hooks")],
    "below a link": [link(f"{TOP}/a", "b"), entry(f"{TOP}/a/c")],
    "hard link": [
        entry(f"{TOP}/a"),
        entry(f"{TOP}/b", b"", type=tarfile.LNKTYPE, linkname=f"{TOP}/a"),
    ],
    "device": [entry(f"{TOP}/null", b"", type=tarfile.CHRTYPE)],
    "pipe": [entry(f"{TOP}/pipe", b"", type=tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("entries", REFUSED.values(), ids=REFUSED)
def test_unsafe_sdist_is_refused_and_leaves_nothing(
    tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    path = sdist(tmp_path, *entries)
    with pytest.raises(UnsafeArchiveError):
        extract_sdist(path, tmp_path / "tree")
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_MEMBERS", 1), ("MAX_MEMBER_BYTES", 9), ("MAX_TOTAL_BYTES", 15)]
)
def test_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    path = sdist(tmp_path, entry(f"{TOP}/a", b"0" * 10), entry(f"{TOP}/b", b"0" * 10))
    list(sdist_members(path))
    monkeypatch.setattr(archiveguard, limit, value)
    with pytest.raises(UnsafeArchiveError):
        list(sdist_members(path))


@pytest.mark.parametrize("kept", [0, 10, -20])
def test_truncated_sdist_is_refused(tmp_path: Path, kept: int) -> None:
    path = sdist(tmp_path, *(entry(f"{TOP}/{at}", bytes([at]) * 5000) for at in range(9)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UnsafeArchiveError, match="cannot be read"):
        list(sdist_members(path))


def test_a_tar_cut_between_two_blocks_is_refused(tmp_path: Path) -> None:
    path = sdist(tmp_path, entry(f"{TOP}/a", b"a" * 2000))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:1024]))
    with pytest.raises(UnsafeArchiveError, match="cannot be read"):
        list(sdist_members(path))


def test_a_missing_sdist_is_no_unsafe_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(sdist_members(tmp_path / "none.tar.gz"))


def test_wheel_members_are_its_sources(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        **{
            "engine/a.py": b"a",
            "engine/_C.abi3.so": b"elf",
            "engine/libx.so.12": b"elf",
            "engine/engine-server": b"\x7fELF a program",
            "engine/data.json": b"{}",
            "engine-1.0.dist-info/METADATA": b"",
            "engine-1.0.data/scripts/x": b"",
        },
    )
    assert [member.path for member in wheel_members(path)] == ["engine/a.py", "engine/data.json"]
    chosen = wheel_members(path, want=lambda name: name.endswith("METADATA"))
    assert [member.path for member in chosen] == ["engine-1.0.dist-info/METADATA"]


@pytest.mark.parametrize("name", ["/a", "../a", "engine/../../a", "a\\b", "engine//a", "a\x00b"])
def test_unsafe_wheel_is_refused_even_where_the_member_is_not_wanted(
    tmp_path: Path, name: str
) -> None:
    path = wheel(tmp_path, **{"engine/a.py": b"a"})
    with zipfile.ZipFile(path, "a") as made:
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        made.writestr(info, b"")
    with pytest.raises(UnsafeArchiveError):
        list(wheel_members(path, want=lambda _: False))


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as made:
        info = zipfile.ZipInfo("engine/link")
        info.external_attr = 0o120777 << 16
        made.writestr(info, b"../../outside")
    with pytest.raises(UnsafeArchiveError, match="link"):
        list(wheel_members(path))


def test_a_name_twice_in_a_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, **{"engine/a.py": b"a"})
    with zipfile.ZipFile(path, "a") as made, pytest.warns(UserWarning, match="Duplicate"):
        made.writestr("engine/a.py", b"b")
    with pytest.raises(UnsafeArchiveError, match=r"engine/a\.py"):
        list(wheel_members(path))


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(UnsafeArchiveError, match="cannot be read"):
        list(wheel_members(path))


PART = st.sampled_from(["..", ".", "", "a", "b", ".git", "C:", "a\\b", "é", "c\n"])


@given(st.lists(PART, min_size=1, max_size=6).map("/".join))
def test_an_accepted_path_stays_inside(name: str) -> None:
    guard = archiveguard.Guard(Path("x.whl"))
    try:
        path = guard.checked_path(name)
    except UnsafeArchiveError:
        return
    assert (Path("/root/tree") / path).resolve().is_relative_to("/root/tree")
    assert path


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join),
    st.lists(PART, min_size=1, max_size=6).map("/".join),
)
def test_an_accepted_link_stays_inside(path: str, target: str) -> None:
    guard = archiveguard.Guard(Path("x.tar.gz"))
    try:
        guard.checked_link(path, target)
    except UnsafeArchiveError:
        return
    root = Path("/root/tree")
    assert ((root / path).parent / target).resolve().is_relative_to(root)
