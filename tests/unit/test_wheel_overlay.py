"""dspatch.wheel.overlay and contents: what an overlay holds, byte for byte."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from installer.sources import WheelFile

from dspatch.errors import (
    BaseDiffersError,
    DiskFullError,
    NativeSourceError,
    UnsafeArchiveError,
    WheelError,
)
from dspatch.wheel import overlay as overlay_module
from dspatch.wheel.overlay import build_overlay
from dspatch.wheel.plan import SBOM_NAME, Accepted, Overlay
from tests.unit import wheelkit
from tests.unit.wheelkit import BASE, BASE_INFO, CHANGES, COMPILED, INFO, SOURCE, VERSION


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return wheelkit.base_wheel(tmp_path / "base")


@pytest.fixture
def built(base: Path, tmp_path: Path) -> Overlay:
    return build_overlay(wheelkit.plan(base), tmp_path / "dist")


def test_the_wheel_has_the_overlays_name_and_the_bases_tags(built: Overlay) -> None:
    assert built.path.name == f"mini-{VERSION}-cp38-abi3-manylinux_2_17_x86_64.whl"
    assert stat.S_IMODE(built.path.stat().st_mode) == 0o644
    assert [item.name for item in built.path.parent.iterdir()] == [built.path.name]


def test_each_member_comes_from_where_it_should(built: Overlay) -> None:
    members = wheelkit.read(built.path)
    assert set(members) == {
        "mini/__init__.py",
        "mini/_version.py",
        "mini/platform.py",
        "mini/ops.py",
        "mini/data.json",
        "mini/_C.abi3.so",
        "mini/new/kernel.py",
        f"{INFO}/licenses/LICENSE",
        f"{INFO}/METADATA",
        f"{INFO}/WHEEL",
        f"{INFO}/entry_points.txt",
        f"{INFO}/{SBOM_NAME}",
        f"{INFO}/RECORD",
    }
    assert members["mini/_C.abi3.so"] == COMPILED
    assert members["mini/data.json"] == BASE["mini/data.json"]
    assert members["mini/platform.py"] == SOURCE["mini/platform.py"], "upstream's bytes win"
    assert members["mini/ops.py"] == CHANGES["mini/ops.py"]
    assert members["mini/new/kernel.py"] == CHANGES["mini/new/kernel.py"]
    assert members[f"{INFO}/entry_points.txt"] == BASE[f"{BASE_INFO}/entry_points.txt"]


def test_what_changed_is_told_with_its_kind_and_patch(built: Overlay) -> None:
    kinds = {change.path: change.change for change in built.changes}
    assert kinds == {
        "mini/_version.py": "identity",
        "mini/injected.py": "removed",
        "mini/new/kernel.py": "added",
        "mini/old.py": "removed",
        "mini/ops.py": "patched",
        "mini/platform.py": "source",
        f"{INFO}/METADATA": "identity",
        f"{INFO}/WHEEL": "identity",
    }
    patched = [change.path for change in built.changes if change.patches == ("all",)]
    assert patched == ["mini/new/kernel.py", "mini/old.py", "mini/ops.py"]
    assert built.unpackaged == ("tests/test_ops.py",)
    assert {(item.path, item.kind) for item in built.differences} == {
        ("mini/_C.abi3.so", "base-only"),
        ("mini/injected.py", "base-only"),
        ("mini/platform.py", "differs"),
    }


def test_untouched_members_are_copied_raw(base: Path, built: Overlay) -> None:
    with zipfile.ZipFile(base) as old, zipfile.ZipFile(built.path) as new:
        for name in ("mini/_C.abi3.so", "mini/data.json", "mini/__init__.py"):
            before, after = old.getinfo(name), new.getinfo(name)
            for fact in ("compress_size", "CRC", "date_time", "external_attr", "compress_type"):
                assert getattr(before, fact) == getattr(after, fact), (name, fact)
        assert new.getinfo("mini/ops.py").date_time == (2020, 9, 13, 12, 26, 40)
        assert new.getinfo("mini/ops.py").external_attr >> 16 == 0o100644
        assert new.testzip() is None
    assert built.raw_members == 5


def test_dist_info_comes_last_and_record_is_the_last_of_it(built: Overlay) -> None:
    with zipfile.ZipFile(built.path) as archive:
        names = archive.namelist()
    first = next(at for at, name in enumerate(names) if name.startswith(INFO))
    assert all(name.startswith(INFO) for name in names[first:])
    assert names[-1] == f"{INFO}/RECORD"


def test_the_record_satisfies_installer_and_is_sorted(built: Overlay) -> None:
    with WheelFile.open(built.path) as wheel:
        wheel.validate_record(validate_contents=True)
    rows = wheelkit.read(built.path)[f"{INFO}/RECORD"].decode().splitlines()
    assert rows == sorted(rows, key=lambda row: row.partition(",")[0])
    assert f"{INFO}/RECORD,," in rows


BUILD = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[1], 8))
from dspatch.wheel.overlay import build_overlay
from tests.unit import wheelkit
build_overlay(wheelkit.plan(Path(sys.argv[2])), Path(sys.argv[3]))
"""


def test_the_same_plan_gives_the_same_bytes_under_any_umask_zone_and_hash_seed(
    base: Path, tmp_path: Path
) -> None:
    root = Path(__file__).parents[2]
    made = []
    for umask, zone, seed in (("000", "UTC", "1"), ("077", "Asia/Tokyo", "2")):
        dest = tmp_path / umask
        env = {**os.environ, "TZ": zone, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        subprocess.run([sys.executable, "-c", BUILD, umask, base, dest], check=True, env=env)
        (wheel,) = dest.glob("*.whl")
        made.append((wheel.read_bytes(), stat.S_IMODE(wheel.stat().st_mode)))
    assert made[0] == made[1]
    assert made[0][1] == 0o644


def test_an_epoch_before_zips_first_day_is_that_day(base: Path, tmp_path: Path) -> None:
    built = build_overlay(wheelkit.plan(base, epoch=0), tmp_path / "dist")
    with zipfile.ZipFile(built.path) as archive:
        assert archive.getinfo("mini/ops.py").date_time == (1980, 1, 1, 0, 0, 0)


def test_unexplained_differences_are_all_named(base: Path, tmp_path: Path) -> None:
    accepted = (Accepted(path="mini/_version.py", reason="generated"),)
    with pytest.raises(BaseDiffersError) as caught:
        build_overlay(wheelkit.plan(base, accepted=accepted), tmp_path / "dist")
    for path in ("mini/platform.py", "mini/_C.abi3.so", "mini/injected.py"):
        assert path in caught.value.why
    assert not (tmp_path / "dist").exists()


def test_a_file_that_only_the_source_has_must_be_explained(base: Path, tmp_path: Path) -> None:
    source = {**SOURCE, "mini/left_out.py": b""}
    with pytest.raises(BaseDiffersError, match="source-only  mini/left_out"):
        build_overlay(wheelkit.plan(base, source=source), tmp_path / "dist")
    accepted = (*wheelkit.ACCEPTED, Accepted(path="mini/left_out.py", reason="not packaged"))
    built = build_overlay(wheelkit.plan(base, source=source, accepted=accepted), tmp_path / "dist")
    assert "mini/left_out.py" not in wheelkit.read(built.path)


def test_a_base_only_file_is_kept_unless_it_is_dropped(base: Path, tmp_path: Path) -> None:
    accepted = (*wheelkit.ACCEPTED[:3], Accepted(path="mini/injected.py", reason="harmless"))
    built = build_overlay(wheelkit.plan(base, accepted=accepted), tmp_path / "dist")
    assert wheelkit.read(built.path)["mini/injected.py"] == BASE["mini/injected.py"]


@pytest.mark.parametrize("path", ["csrc/kernel.cpp", "mini/native/op.cu", "setup.py"])
def test_native_changes_are_refused_with_file_and_patch(
    base: Path, tmp_path: Path, path: str
) -> None:
    changes = {path: b"x\n"}
    plan = wheelkit.plan(base, changes=changes, patches=(wheelkit.patch("rope", changes),))
    with pytest.raises(NativeSourceError) as caught:
        build_overlay(plan, tmp_path / "dist")
    assert path in caught.value.what
    assert f"rope: {path}" in caught.value.why


def test_an_own_extension_is_added_executable(base: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "x.so"
    compiled.write_bytes(b"\x7fELF own")
    plan = wheelkit.plan(base, extensions={"mini/_dspatch_C.abi3.so": compiled})
    built = build_overlay(plan, tmp_path / "dist")
    with zipfile.ZipFile(built.path) as archive:
        assert archive.read("mini/_dspatch_C.abi3.so") == b"\x7fELF own"
        assert archive.getinfo("mini/_dspatch_C.abi3.so").external_attr >> 16 == 0o100755
    kinds = {change.path: change.change for change in built.changes}
    assert kinds["mini/_dspatch_C.abi3.so"] == "extension"


@pytest.mark.parametrize("path", ["mini/_C.abi3.so", "mini/ops.py", "elsewhere/_C.abi3.so"])
def test_an_extension_replaces_nothing_and_stays_in_the_package(
    base: Path, tmp_path: Path, path: str
) -> None:
    with pytest.raises(WheelError):
        build_overlay(wheelkit.plan(base, extensions={path: base}), tmp_path / "dist")


def test_a_change_that_no_patch_explains_is_refused(base: Path, tmp_path: Path) -> None:
    changes = {**CHANGES, "mini/data.json": b"[]\n"}
    with pytest.raises(WheelError) as caught:
        build_overlay(wheelkit.plan(base, changes=changes), tmp_path / "dist")
    assert "mini/data.json" in caught.value.why


def test_a_patch_that_makes_what_the_base_has_is_told_as_same(base: Path, tmp_path: Path) -> None:
    changes = {"mini/platform.py": BASE["mini/platform.py"]}
    plan = wheelkit.plan(base, changes=changes, patches=(wheelkit.patch("p", changes),))
    built = build_overlay(plan, tmp_path / "dist")
    change = next(change for change in built.changes if change.path == "mini/platform.py")
    assert (change.change, change.patches) == ("same", ("p",))


def test_signatures_of_the_old_record_are_left_out(tmp_path: Path) -> None:
    base = wheelkit.base_wheel(tmp_path / "base", {**BASE, f"{BASE_INFO}/RECORD.jws": b"{}"})
    built = build_overlay(wheelkit.plan(base), tmp_path / "dist")
    assert not [name for name in wheelkit.read(built.path) if name.endswith("RECORD.jws")]


def test_a_data_folder_is_renamed_with_the_wheel(tmp_path: Path) -> None:
    members = {**BASE, "mini_cpu-1.0.data/scripts/mini-tool": b"#!python\n"}
    built = build_overlay(
        wheelkit.plan(wheelkit.base_wheel(tmp_path / "base", members)), tmp_path / "dist"
    )
    assert f"mini-{VERSION}.data/scripts/mini-tool" in wheelkit.read(built.path)


def test_an_unsafe_base_is_refused(tmp_path: Path) -> None:
    base = wheelkit.base_wheel(tmp_path / "base", {**BASE, "../outside.py": b""})
    with pytest.raises(UnsafeArchiveError):
        build_overlay(wheelkit.plan(base), tmp_path / "dist")


@pytest.mark.parametrize("missing", [f"{BASE_INFO}/METADATA", f"{BASE_INFO}/WHEEL"])
def test_a_base_without_metadata_is_refused(tmp_path: Path, missing: str) -> None:
    members = {path: data for path, data in BASE.items() if path != missing}
    base = wheelkit.base_wheel(tmp_path / "base", members)
    with pytest.raises(WheelError, match="not a readable wheel"):
        build_overlay(wheelkit.plan(base), tmp_path / "dist")


def test_a_base_without_a_version_file_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(WheelError) as caught:
        build_overlay(wheelkit.plan(base, version_file="mini/nowhere.py"), tmp_path / "dist")
    assert "mini/nowhere.py" in caught.value.what


def test_a_truncated_base_is_refused(base: Path, tmp_path: Path) -> None:
    base.write_bytes(base.read_bytes()[:-100])
    with pytest.raises(WheelError, match="not a readable wheel"):
        build_overlay(wheelkit.plan(base), tmp_path / "dist")


class Failing(Mapping[str, bytes]):
    """A source whose reading stops midway."""

    def __getitem__(self, path: str) -> bytes:
        if path == "mini/ops.py":
            raise KeyboardInterrupt
        return SOURCE[path]

    def __iter__(self) -> Iterator[str]:
        return iter(SOURCE)

    def __len__(self) -> int:
        return len(SOURCE)


def test_an_interrupt_leaves_nothing(base: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_overlay(wheelkit.plan(base, source=Failing()), tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_a_failure_while_writing_keeps_the_wheel_that_was_there(
    base: Path, built: Overlay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = built.path.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(overlay_module, "copy_member", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_overlay(wheelkit.plan(base), tmp_path / "dist")
    assert built.path.read_bytes() == before
    assert [item.name for item in built.path.parent.iterdir()] == [built.path.name]


def test_a_full_disk_is_told_as_such(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(overlay_module, "write_member", full)
    with pytest.raises(DiskFullError):
        build_overlay(wheelkit.plan(base), tmp_path / "dist")
    assert not list((tmp_path / "dist").iterdir())


def test_folders_of_the_base_are_no_members(tmp_path: Path) -> None:
    whole = wheelkit.read(wheelkit.base_wheel(tmp_path))
    base = wheelkit.raw_wheel(tmp_path / wheelkit.BASE_NAME, {"mini/": b"", **whole})
    built = build_overlay(wheelkit.plan(base), tmp_path / "dist")
    assert "mini/" not in wheelkit.read(built.path)
