"""Read sdists and wheels as streams of members; one that would land outside is refused."""

from __future__ import annotations

import gzip
import os
import posixpath
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Never

from dspatch.errors import UnsafeArchiveError

# Far above any engine's archive (vLLM's CUDA wheel unpacks to 1.1 GiB, its sdist to 0.2 GiB, with
# at most 6,000 members), far below what fills a disk or the memory.
MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 2 << 30
MAX_TOTAL_BYTES = 8 << 30

_COMPILED = re.compile(r"\.(so|so\.[\d.]+|pyd|dll|dylib|a|o|cubin|fatbin)$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file of an archive: path, mode (0o644 or 0o755), and its bytes or where it links to."""

    path: str
    mode: int
    data: bytes
    link: str | None = None


def sdist_members(path: Path) -> Iterator[Member]:
    """The files and inner links of a `.tar.gz` sdist in archive order, without the top folder.

    Raises `UnsafeArchiveError` at the first member that is unsafe; drop what came before it then.
    """
    guard = _Guard(path)
    tops: set[str] = set()
    with _readable(path), gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for info in tar:
            top, _, inner = guard.checked_path(info.name.removeprefix("./")).partition("/")
            tops.add(top)
            if len(tops) > 1:
                guard.refuse(info.name, f"an sdist has one top folder, this one {sorted(tops)}")
            if inner and not info.isdir():
                yield _tar_member(guard, tar, info, inner)
        # A tar ends before its file does; gzip's checksum of the whole lies behind that.
        while stream.read(1 << 20):
            pass


def wheel_members(path: Path, *, want: Callable[[str], bool] | None = None) -> Iterator[Member]:
    """The files of a wheel whose path `want` accepts; without `want`, its sources.

    Sources are all members except compiled objects and the `.dist-info` and `.data` folders. Raises
    `UnsafeArchiveError` before anything is read when any member, wanted or not, is unsafe.
    """
    with _readable(path), zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        for info in archive.infolist():
            if want is not None:
                accepted = want(info.filename)
            else:
                accepted = is_source(info.filename) and not _is_elf(archive, info)
            if accepted and not info.is_dir():
                yield Member(
                    path=info.filename,
                    mode=_mode(info.external_attr >> 16),
                    data=archive.read(info),
                )


def extract_sdist(path: Path, dest: Path) -> None:
    """Unpack an sdist, without its top folder, into the new folder `dest`: whole or not at all."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{dest.name}-", dir=dest.parent))
    try:
        for member in sdist_members(path):
            _write(partial / member.path, member)
        partial.chmod(0o755)
        partial.rename(dest)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_zip(path: Path, archive: zipfile.ZipFile) -> None:
    """Check the names, kinds and sizes of every member of an open zip archive."""
    guard = _Guard(path)
    for info in archive.infolist():
        # zipfile cuts a name at its first NUL and keeps what the archive said in `orig_filename`.
        name = guard.checked_path(info.orig_filename.removesuffix("/"))
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            guard.refuse(name, "it is a link or a device, and a wheel holds files only")
        if info.is_dir():
            guard.add_dir(name)
        else:
            guard.add_file(name, info.file_size)


def is_source(path: str) -> bool:
    """Whether a wheel's member is neither compiled nor in its `.dist-info` or `.data` folder."""
    top = path.partition("/")[0]
    return not top.endswith((".dist-info", ".data")) and not is_compiled(path)


def is_compiled(path: str) -> bool:
    """Whether a path names a compiled object."""
    return bool(_COMPILED.search(path))


class _Guard:
    """What is known so far of one archive, and the refusal of a member that does not fit it."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.leaves: set[str] = set()
        self.folders: set[str] = set()
        self.total = 0

    def refuse(self, name: str, why: str) -> Never:
        raise UnsafeArchiveError(
            f"{self.archive.name}: the member {name!r} is refused.",
            why=why,
            next="delete the file and fetch it again; if it stays so, do not use this source",
        )

    def checked_path(self, name: str) -> str:
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or re.match(r"[A-Za-z]:", name):
            self.refuse(name, "its path is absolute")
        if ".." in parts:
            self.refuse(name, "its path climbs out of the folder with '..'")
        if "\\" in name or _CONTROL.search(name) or not _encodable(name):
            self.refuse(name, "its path has a backslash, a control character or no valid encoding")
        if "" in parts or "." in parts:
            self.refuse(name, "its path has an empty part or '.'")
        if ".git" in [part.lower() for part in parts]:
            self.refuse(name, "it would land in a git directory, where hooks run")
        return "/".join(parts)

    def add_dir(self, path: str) -> None:
        if path in self.leaves:
            self.refuse(path, "it is both a folder and a file or link")
        self.folders.add(path)

    def add_file(self, path: str, size: int) -> None:
        if path in self.leaves:
            self.refuse(path, "it is there twice, and which one counts depends on the reader")
        if path in self.folders:
            self.refuse(path, "it is both a folder and a file or link")
        for parent in _parents(path):
            self.add_dir(parent)
        self.leaves.add(path)
        self.total += size
        if size > MAX_MEMBER_BYTES:
            self.refuse(path, f"{size:,} bytes are above the limit of {MAX_MEMBER_BYTES:,}")
        if self.total > MAX_TOTAL_BYTES:
            self.refuse(path, f"the archive unpacks to more than {MAX_TOTAL_BYTES:,} bytes")
        if len(self.leaves) > MAX_MEMBERS:
            self.refuse(path, f"the archive has more than {MAX_MEMBERS:,} members")

    def checked_link(self, path: str, target: str) -> str:
        parts = target.split("/")
        climb = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
        depth = path.count("/")
        # No folder on the way to a link is a link (`add_file`), so its leading '..' are what they
        # seem. A '..' further on could follow another link first, and is refused.
        if not target or target.startswith("/") or climb > depth or ".." in parts[climb:]:
            self.refuse(path, f"it links to {target!r}, outside the archive's folder")
        if "\\" in target or _CONTROL.search(target) or not _encodable(target):
            self.refuse(path, "its link has a backslash, a control character or no valid encoding")
        if ".git" in [part.lower() for part in parts]:
            self.refuse(path, f"it links to {target!r}, a git directory")
        return target


def _tar_member(guard: _Guard, tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> Member:
    guard.add_file(path, info.size)
    if info.issym():
        link = guard.checked_link(path, info.linkname)
        return Member(path=path, mode=0o644, data=b"", link=link)
    stream = tar.extractfile(info) if info.isreg() else None
    if stream is None:
        guard.refuse(path, "it is a hard link or a device; files, folders and inner links only")
    return Member(path=path, mode=_mode(info.mode), data=stream.read())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    broken = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
    try:
        yield
    except (*broken, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UnsafeArchiveError(
            f"{path.name} cannot be read to its end.",
            why=str(error) or type(error).__name__,
            next="delete the file and fetch it again",
        ) from error


def _write(target: Path, member: Member) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.link is not None:
        target.symlink_to(member.link)
        return
    # O_EXCL and O_NOFOLLOW: whatever the checks missed, no file is written through a link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    stream: IO[bytes]
    with os.fdopen(os.open(target, flags, member.mode), "wb") as stream:
        stream.write(member.data)
    target.chmod(member.mode)


def _is_elf(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
    # A compiled program has no ending that tells it.
    with archive.open(info) as stream:
        return stream.read(4) == b"\x7fELF"


def _mode(bits: int) -> int:
    return 0o755 if bits & stat.S_IXUSR else 0o644


def _parents(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
