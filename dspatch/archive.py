"""Read sdists and wheels as streams of members; one that would land outside is refused."""

from __future__ import annotations

import gzip
import os
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
from typing import IO

from dspatch.archiveguard import Guard
from dspatch.errors import UnsafeArchiveError

_COMPILED = re.compile(r"\.(so|so\.[\d.]+|pyd|dll|dylib|a|o|cubin|fatbin)$")


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
    guard = Guard(path)
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
    guard = Guard(path)
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


def _tar_member(guard: Guard, tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> Member:
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
