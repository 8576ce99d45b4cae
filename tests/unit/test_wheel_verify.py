"""dspatch.wheel.verify: a right wheel passes, and every planted fault is caught by its check."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dspatch.errors import WheelVerifyError
from dspatch.wheel.overlay import build_overlay
from dspatch.wheel.plan import SBOM_NAME
from dspatch.wheel.rawzip import data_offset
from dspatch.wheel.record import entry_of, read_record
from dspatch.wheel.verify import CHECKS, Verification, inspect, verify
from tests.unit import wheelkit
from tests.unit.wheelkit import BASE, INFO, VERSION

RECORD = f"{INFO}/RECORD"
SBOM = f"{INFO}/{SBOM_NAME}"
Members = dict[str, bytes]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return wheelkit.base_wheel(tmp_path / "base")


@pytest.fixture
def wheel(base: Path, tmp_path: Path) -> Path:
    return build_overlay(wheelkit.plan(base), tmp_path / "dist").path


def rebuilt(wheel: Path, change: Callable[[Members], Members | None], *, record: bool) -> Path:
    """The wheel with changed members; with `record`, RECORD is made to agree with them."""
    members = wheelkit.read(wheel)
    members = change(members) or members
    if record:
        members[RECORD] = wheelkit.record_of(members, RECORD)
    return wheelkit.raw_wheel(wheel.parent / "faulty" / wheel.name, members)


def failed(verification: Verification) -> dict[str, list[str]]:
    """The members that each failed check names."""
    return {
        result.name: [fault.member for fault in result.faults]
        for result in verification.results
        if not result.passed
    }


def edited(members: Members, change: Callable[[dict[str, Any]], None]) -> Members:
    document = json.loads(members[SBOM])
    change(document)
    return {**members, SBOM: json.dumps(document).encode()}


def replaced(members: Members, path: str, old: bytes, new: bytes) -> Members:
    assert old in members[path]
    return {**members, path: members[path].replace(old, new)}


def test_a_right_wheel_passes_every_check(wheel: Path, base: Path) -> None:
    assert [result.name for result in verify(wheel).results] == ["archive", *CHECKS]
    verification = verify(wheel, base)
    assert [result.name for result in verification.results] == ["archive", *CHECKS, "base"]
    assert verification.as_dict()["passed"] is True


def test_a_recompressed_wheel_still_is_its_base(wheel: Path, base: Path) -> None:
    members = wheelkit.read(wheel)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as made:
        for name, data in members.items():
            made.writestr(name, data)
    assert verify(wheel, base).passed


def test_a_flipped_byte_is_named_with_expected_and_got(wheel: Path, base: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, wheel.open("rb") as stream:
        offset = data_offset(stream, archive.getinfo("mini/_C.abi3.so"))
    data = bytearray(wheel.read_bytes())
    data[offset + 200] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(WheelVerifyError) as caught:
        verify(wheel, base)
    digest = entry_of(wheelkit.COMPILED).sha256
    assert f"mini/_C.abi3.so: expected sha256 {digest} of 55000 bytes, got" in caught.value.why


@pytest.mark.parametrize(
    ("old", "new"), [(b"mini/data.json,sha256=", b"mini/data.json,sha256=A"), (b",3\n", b",4\n")]
)
def test_an_altered_record_is_caught(wheel: Path, old: bytes, new: bytes) -> None:
    faulty = rebuilt(wheel, lambda m: replaced(m, RECORD, old, new), record=False)
    assert not inspect(faulty).passed


def test_a_file_that_record_names_must_be_there(wheel: Path) -> None:
    faulty = rebuilt(
        wheel, lambda m: {k: v for k, v in m.items() if k != "mini/data.json"}, record=False
    )
    assert failed(inspect(faulty))["record"] == ["mini/data.json"]


def test_a_file_that_record_does_not_name_is_caught(wheel: Path) -> None:
    faulty = rebuilt(wheel, lambda m: {**m, "mini/extra.py": b"x"}, record=False)
    assert failed(inspect(faulty)) == {"record": ["mini/extra.py"]}


def test_a_record_with_its_own_hash_is_caught(wheel: Path) -> None:
    own = f"{RECORD},,".encode()
    faulty = rebuilt(
        wheel, lambda m: replaced(m, RECORD, own, own[:-2] + b",sha256=aaaa,1"), record=False
    )
    assert failed(inspect(faulty)) == {"record": [RECORD]}


@pytest.mark.parametrize(
    "row", [b"mini/ops.py,md5=aaaa,1\n", b"one,two\n", b"mini/ops.py,sha256=aa,x\n"]
)
def test_a_malformed_record_is_no_wheel(wheel: Path, row: bytes) -> None:
    faulty = rebuilt(wheel, lambda m: {**m, RECORD: m[RECORD] + row}, record=False)
    assert "archive" in failed(inspect(faulty))


@pytest.mark.parametrize(
    ("member", "old", "new"),
    [
        ("METADATA", b"Name: mini", b"Name: other"),
        ("METADATA", f"Version: {VERSION}".encode(), b"Version: 1.0"),
        ("METADATA", f"Version: {VERSION}".encode(), b"Version: no version"),
        ("WHEEL", b"cp38-abi3", b"cp39-abi3"),
    ],
)
def test_metadata_that_contradicts_the_file_name_is_caught(
    wheel: Path, member: str, old: bytes, new: bytes
) -> None:
    path = f"{INFO}/{member}"
    faulty = rebuilt(wheel, lambda m: replaced(m, path, old, new), record=True)
    assert failed(inspect(faulty))["identity"] == [path]


def test_a_renamed_wheel_is_caught(wheel: Path) -> None:
    other = wheel.with_name(wheel.name.replace("1a2b", "ffff"))
    shutil.copy(wheel, other)
    names = failed(inspect(other))
    assert set(names) == {"identity", "version", "pedigree"}


def test_a_requirement_that_no_index_serves_is_caught(wheel: Path) -> None:
    faulty = rebuilt(
        wheel,
        lambda m: replaced(m, f"{INFO}/METADATA", b"==2.13.0;", b"==2.13.0+cpu;"),
        record=True,
    )
    assert failed(inspect(faulty))["requirements"] == [f"{INFO}/METADATA"]


def test_a_version_file_that_says_otherwise_is_caught(wheel: Path) -> None:
    faulty = rebuilt(
        wheel, lambda m: replaced(m, "mini/_version.py", VERSION.encode(), b"1.0"), record=True
    )
    assert failed(inspect(faulty))["version"] == ["mini/_version.py"]


def test_a_version_file_is_never_run(wheel: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    code = f"open({str(proof)!r}, 'w')\n__version__ = '{VERSION}'\n".encode()
    verification = inspect(rebuilt(wheel, lambda m: {**m, "mini/_version.py": code}, record=True))
    assert "version" not in failed(verification)
    assert not proof.exists()


def test_a_missing_pedigree_is_caught(wheel: Path) -> None:
    faulty = rebuilt(wheel, lambda m: {k: v for k, v in m.items() if k != SBOM}, record=True)
    assert {"version", "pedigree"} <= set(failed(inspect(faulty)))


def _overlay(document: Mapping[str, Any]) -> dict[str, Any]:
    component: dict[str, Any] = document["metadata"]["component"]
    return component


def _rename(document: dict[str, Any]) -> None:
    _overlay(document)["version"] = "9"


def _alter_diff(document: dict[str, Any]) -> None:
    _overlay(document)["pedigree"]["patches"][0]["diff"]["text"]["content"] += "+more\n"


def _drop_file(document: dict[str, Any]) -> None:
    files = _overlay(document)["components"]
    files[:] = [item for item in files if item["name"] != "mini/ops.py"]


def _blame_no_patch(document: dict[str, Any]) -> None:
    for item in _overlay(document)["components"]:
        item["properties"] = [p for p in item["properties"] if p["name"] != "dspatch:patch"]


def _alter_hash(document: dict[str, Any]) -> None:
    _overlay(document)["components"][0]["hashes"][0]["content"] = "00" * 32


def _drop_patch(document: dict[str, Any]) -> None:
    _overlay(document)["pedigree"]["patches"] = []


def _unknown_change(document: dict[str, Any]) -> None:
    _overlay(document)["components"][0]["properties"][0]["value"] = "improved"


def _other_format(document: dict[str, Any]) -> None:
    document["bomFormat"] = "Other"


@pytest.mark.parametrize(
    "fault",
    [
        _rename,
        _alter_diff,
        _drop_file,
        _blame_no_patch,
        _alter_hash,
        _drop_patch,
        _unknown_change,
        _other_format,
    ],
)
def test_a_pedigree_that_does_not_fit_is_caught(
    wheel: Path, fault: Callable[[dict[str, Any]], None]
) -> None:
    faulty = rebuilt(wheel, lambda m: edited(m, fault), record=True)
    assert "pedigree" in failed(inspect(faulty))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("mini/data.json", b"[]\n"),
        ("mini/_C.abi3.so", b"other"),
        ("mini/extra.py", b"x"),
        ("mini/old.py", BASE["mini/old.py"]),
        ("mini/ops.py", BASE["mini/ops.py"]),
        ("mini/data.json", None),
    ],
)
def test_an_undeclared_departure_from_the_base_is_caught(
    wheel: Path, base: Path, path: str, data: bytes | None
) -> None:
    """RECORD is made to agree, so only the comparison with the base can tell."""

    def change(members: Members) -> Members:
        kept = {name: value for name, value in members.items() if name != path}
        return kept if data is None else {**kept, path: data}

    faulty = rebuilt(wheel, change, record=True)
    assert path in failed(inspect(faulty, base))["base"]


def test_another_base_is_caught(wheel: Path, tmp_path: Path) -> None:
    other = wheelkit.base_wheel(tmp_path / "other", {**BASE, "mini/data.json": b"[1]\n"})
    assert failed(inspect(wheel, other)) == {"base": [other.name, "mini/data.json"]}


@pytest.mark.parametrize("name", ["../outside.py", "/absolute.py", "mini//x.py"])
def test_an_unsafe_member_is_caught(wheel: Path, name: str) -> None:
    faulty = rebuilt(wheel, lambda m: {**m, name: b""}, record=True)
    assert list(failed(inspect(faulty))) == ["archive"]


def test_a_link_is_caught(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        info = zipfile.ZipInfo("mini/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, b"../../x")
    assert list(failed(inspect(wheel))) == ["archive"]


def test_a_member_twice_is_caught(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("mini/ops.py", b"other")
    assert list(failed(inspect(wheel))) == ["archive"]


def test_a_file_that_is_no_zip_fails_and_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "mini-1.0-py3-none-any.whl"
    path.write_bytes(b"PK\x05\x06 nonsense")
    with pytest.raises(WheelVerifyError):
        verify(path)


def test_many_faults_are_cut_in_the_message_and_whole_in_the_list(wheel: Path) -> None:
    extra = {f"mini/x{at}.py": b"" for at in range(30)}
    faulty = rebuilt(wheel, lambda m: {**m, **extra}, record=False)
    with pytest.raises(WheelVerifyError, match="30 faults") as caught:
        verify(faulty)
    assert "and 20 more" in caught.value.why
    assert len(inspect(faulty).faults) == 30


def test_the_record_reads_back(wheel: Path) -> None:
    rows = read_record(wheelkit.read(wheel)[RECORD].decode())
    assert rows["mini/_C.abi3.so"] == entry_of(wheelkit.COMPILED)
    assert rows[RECORD] is None
