"""Read from ELF files what a shared object needs, and what a library provides."""

from __future__ import annotations

import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dspatch.errors import WheelError
from dspatch.wheel.rawzip import CHUNK

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

# The three families of symbol versions that decide whether a wheel loads on a machine.
FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI")
_SYMBOL_VERSION = re.compile(r"(GLIBCXX|GLIBC|CXXABI)_(\d+(?:\.\d+)*)")
_SHARED_OBJECT = re.compile(r"\.so(\.[\d.]+)?$")

# ELF's names of machines, as the kernel names them.
_MACHINES = {
    "EM_X86_64": "x86_64",
    "EM_AARCH64": "aarch64",
    "EM_386": "i686",
    "EM_ARM": "armv7l",
    "EM_PPC64": "ppc64le",
    "EM_S390": "s390x",
    "EM_RISCV": "riscv64",
}

Version = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one shared object needs; a version is the highest of its family, or None if unused."""

    path: str
    machine: str
    glibc: Version | None
    glibcxx: Version | None
    cxxabi: Version | None
    libraries: tuple[str, ...]


def wheel_needs(wheel: Path) -> tuple[Needs, ...]:
    """What every shared object of a wheel needs of the machine, what the wheel brings left out.

    Objects are unpacked one by one, so that disk and not memory holds them. Raises `WheelError` for
    a shared object that is no ELF file.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = shared_objects(archive)
        brought = {name.rpartition("/")[2] for name in names}
        return tuple(_member_needs(archive, name, brought) for name in names)


def shared_objects(archive: zipfile.ZipFile) -> list[str]:
    """The names of a wheel's shared objects."""
    return [name for name in archive.namelist() if _SHARED_OBJECT.search(name)]


def object_needs(path: Path, name: str = "", brought: Iterable[str] = ()) -> Needs:
    """What the shared object at `path` needs, of libraries other than those `brought` along."""
    from elftools.common.exceptions import ELFError

    try:
        with path.open("rb") as stream:
            elf = _elf(stream)
            versions = _highest(_needed_versions(elf, frozenset(brought)))
            return Needs(
                path=name or path.name,
                machine=_MACHINES.get(elf["e_machine"], elf["e_machine"]),
                glibc=versions.get("GLIBC"),
                glibcxx=versions.get("GLIBCXX"),
                cxxabi=versions.get("CXXABI"),
                libraries=tuple(_needed_libraries(elf)),
            )
    except (ELFError, UnicodeDecodeError) as error:
        raise WheelError(
            f"{name or path.name} is not a readable shared object.",
            why=str(error) or type(error).__name__,
            next="delete the wheel and fetch it again",
        ) from None


def provided_versions(library: Path) -> dict[str, Version]:
    """The highest version of each family that a library defines, such as libstdc++'s GLIBCXX."""
    from elftools.elf.gnuversions import GNUVerDefSection

    with library.open("rb") as stream:
        section = _elf(stream).get_section_by_name(".gnu.version_d")
        if not isinstance(section, GNUVerDefSection):
            return {}
        return _highest(aux.name for _, names in section.iter_versions() for aux in names)


def exports(library: Path, symbol: str) -> bool:
    """Whether a library defines a dynamic symbol, asked through its hash table; not so for what is no ELF."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.hash import ELFHashSection, GNUHashSection

    try:
        with library.open("rb") as stream:
            for section in _elf(stream).iter_sections():
                if isinstance(section, GNUHashSection | ELFHashSection):
                    found = section.get_symbol(symbol)
                    # The older kind of table has what a library only uses, too.
                    return found is not None and found["st_shndx"] != "SHN_UNDEF"
    except (ELFError, OSError, ValueError, LookupError, ArithmeticError, struct.error):
        return False
    return False


def _elf(stream: IO[bytes]) -> ELFFile:
    from elftools.elf.elffile import ELFFile

    return ELFFile(stream)


def _member_needs(archive: zipfile.ZipFile, name: str, brought: set[str]) -> Needs:
    with tempfile.NamedTemporaryFile(prefix="dspatch-elf-") as unpacked:
        with archive.open(name) as stream:
            shutil.copyfileobj(stream, unpacked, CHUNK)
        unpacked.flush()
        return object_needs(Path(unpacked.name), name, brought)


def _needed_versions(elf: ELFFile, brought: frozenset[str]) -> Iterator[str]:
    from elftools.elf.gnuversions import GNUVerNeedSection

    section = elf.get_section_by_name(".gnu.version_r")
    if isinstance(section, GNUVerNeedSection):
        for library, versions in section.iter_versions():
            if library.name not in brought:
                yield from (version.name for version in versions)


def _needed_libraries(elf: ELFFile) -> Iterator[str]:
    from elftools.elf.dynamic import DynamicSection

    section = elf.get_section_by_name(".dynamic")
    if isinstance(section, DynamicSection):
        tags: Iterator[Any] = section.iter_tags("DT_NEEDED")
        yield from (str(tag.needed) for tag in tags)


def dotted(version: Version) -> str:
    """A version as it is written: 3.4.32."""
    return ".".join(map(str, version))


def _highest(names: Iterable[str]) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for name in names:
        # Other names are of no order: GLIBC_PRIVATE, CXXABI_TM_1, CXXABI_FLOAT128.
        if match := _SYMBOL_VERSION.fullmatch(name):
            version = tuple(map(int, match[2].split(".")))
            found[match[1]] = max(version, found.get(match[1], ()))
    return found
