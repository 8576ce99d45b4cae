"""A generated base wheel, the source it was built from, and a plan of an overlay on it."""

from __future__ import annotations

import difflib
import random
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dspatch.wheel.plan import Accepted, OverlayPlan, PatchRecord
from dspatch.wheel.record import entry_of, write_record

BASE_NAME = "mini_cpu-1.0-cp38-abi3-manylinux_2_17_x86_64.whl"
BASE_INFO = "mini_cpu-1.0.dist-info"
VERSION = "1.0+cpu.dspatch.1a2b3c4d5e6f"
INFO = f"mini-{VERSION}.dist-info"
EPOCH = 1_600_000_000

VERSION_FILE = """\
# file generated
version: str
__version__: str
__version__ = version = '1.0'
__version_tuple__ = version_tuple = (1, 0)
"""
METADATA = """\
Metadata-Version: 2.4
Name: mini-cpu
Version: 1.0
Author-email: Someone <someone@example.org>
Maintainer-email: Someone <someone@example.org>
Project-URL: Bug Tracker, https://example.org/mini-cpu/issues
Project-URL: Homepage, https://example.org/mini
Requires-Python: >=3.8
Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"
Requires-Dist: numpy

Name: stays as it is, being text
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux_x86_64\n"

SOURCE: dict[str, bytes] = {
    "mini/__init__.py": b"",
    "mini/_version.py": VERSION_FILE.encode(),
    "mini/platform.py": b"def platform():\n    return 'cpu'\n",
    "mini/ops.py": b"def op():\n    raise NotImplementedError\n",
    "mini/old.py": b"OLD = True\n",
    "mini/data.json": b"{}\n",
    "csrc/kernel.cpp": b"int answer() { return 42; }\n",
    "tests/test_ops.py": b"def test(): pass\n",
}
COMPILED = random.Random(0).randbytes(5_000) + b"\0" * 50_000
BASE: dict[str, bytes] = {
    **{path: data for path, data in SOURCE.items() if path.startswith("mini/")},
    "mini/platform.py": b"def platform():\n    return 'cpu, says the community'\n",
    "mini/_C.abi3.so": COMPILED,
    "mini/injected.py": b"print('hello')\n",
    f"{BASE_INFO}/licenses/LICENSE": b"text\n",
    f"{BASE_INFO}/METADATA": METADATA.encode(),
    f"{BASE_INFO}/WHEEL": WHEEL.encode(),
    f"{BASE_INFO}/entry_points.txt": b"[console_scripts]\nmini = mini:main\n",
}
ACCEPTED = (
    Accepted(path="*.so", reason="compiled"),
    Accepted(path="mini/_version.py", reason="generated"),
    Accepted(path="mini/platform.py", reason="a community edit"),
    Accepted(path="mini/injected.py", reason="injected by the community build", drop=True),
)
CHANGES: dict[str, bytes | None] = {
    "mini/ops.py": b"def op():\n    return 1\n",
    "mini/new/kernel.py": b"K = 1\n",
    "mini/old.py": None,
    "tests/test_ops.py": b"def test(): assert True\n",
}


def base_wheel(folder: Path, members: Mapping[str, bytes] | None = None) -> Path:
    """A deflated base wheel with a right RECORD, an executable shared object and old times."""
    members = BASE if members is None else members
    own = f"{BASE_INFO}/RECORD"
    record = write_record({path: entry_of(data) for path, data in members.items()}, own)
    return raw_wheel(folder / BASE_NAME, {**members, own: record})


def raw_wheel(path: Path, members: Mapping[str, bytes]) -> Path:
    """A zip of these members as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2019, 5, 4, 3, 2, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100664) << 16
            made.writestr(info, data)
    return path


def read(path: Path) -> dict[str, bytes]:
    """All members of a wheel by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def record_of(members: Mapping[str, bytes], own: str) -> bytes:
    """The right RECORD for these members."""
    rows = {path: entry_of(data) for path, data in members.items() if path != own}
    return write_record(rows, own)


def diff(changes: Mapping[str, bytes | None], source: Mapping[str, bytes] = SOURCE) -> str:
    """The git diff that makes these changes."""
    return "".join(_file_diff(path, source.get(path), new) for path, new in changes.items())


def patch(name: str, changes: Mapping[str, bytes | None]) -> PatchRecord:
    """The record of a patch that makes these changes."""
    return PatchRecord(
        name=name,
        subject=f"Do {name}",
        reason="because\nit must",
        upstream="https://example.org/pull/1",
        sha256="ab" * 32,
        diff=diff(changes),
    )


def plan(base: Path, **fields: object) -> OverlayPlan:
    """A plan in which every kind of change occurs; `fields` replace its parts."""
    whole = OverlayPlan(
        base=base,
        source=SOURCE,
        changes=CHANGES,
        name="mini",
        version=VERSION,
        accepted=ACCEPTED,
        patches=(patch("all", CHANGES),),
        version_file="mini/_version.py",
        epoch=EPOCH,
    )
    changed: Callable[..., OverlayPlan] = replace
    return changed(whole, **fields)


def _file_diff(path: str, old: bytes | None, new: bytes | None) -> str:
    before, after = ((data or b"").decode().splitlines(True) for data in (old, new))
    mode = "new file mode 100644\n" if old is None else ""
    mode += "deleted file mode 100644\n" if new is None else ""
    body = difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n{mode}" + "".join(body)
