"""The files of a small release of an engine: an sdist, and wheels."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

VERSION_FILE = "commit_id: str | None\n__commit_id__ = commit_id = {commit!r}\n"
PLATFORM = "linux_" + sysconfig.get_platform().rpartition("-")[2]
FILES = {
    "vllm/__init__.py": b"",
    "vllm/_version.py": VERSION_FILE.format(commit="g6e448d0ea").encode(),
    "vllm/platforms/__init__.py": b"name = 'vllm'\n",
    "vllm/engine.py": b"def run(): ...\n",
}


def sdist(version: str, files: dict[str, bytes] = FILES) -> bytes:
    """An sdist with a PKG-INFO; `files` are paths below its top folder."""
    info = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\nRequires-Python: >=3.10\n"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, data in {"PKG-INFO": info.encode(), "setup.py": b"", **files}.items():
            member = tarfile.TarInfo(f"vllm-{version}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def wheel(
    project: str, version: str, files: dict[str, bytes], *, requires: tuple[str, ...] = ()
) -> bytes:
    """A wheel with METADATA and RECORD."""
    info = f"{project.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}"]
    lines += ["Requires-Python: >=3.10", *(f"Requires-Dist: {each}" for each in requires)]
    members = {
        **files,
        f"{info}/METADATA": ("\n".join(lines) + "\n").encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n",
    }
    rows = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return out.getvalue()


def shared_object() -> bytes:
    """A real ELF file: the smallest compiled module of this Python, or its interpreter."""
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    found = [*folder.glob("*.so"), Path(sys.executable).resolve()]
    return min(found, key=lambda path: path.stat().st_size).read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
