"""Compile a shared object of our own for an overlay, to the same bytes wherever the compiler is the same."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from dspatch import process
from dspatch.errors import MissingToolsError, ProcessError, SourceBuildError
from dspatch.extensionspec import Extension, Unit
from dspatch.files import write_atomically
from dspatch.wheel.elf import dotted, object_needs
from dspatch.wheel.source import toolchain

# The same for all: no path, no date and no name of this machine in the object, and nothing
# of C++'s library, whose version a base wheel would not promise.
_COMPILE = ("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-ident")
_LINK = ("-shared", "-s", "-static-libgcc", "-Wl,--as-needed", "-Wl,-z,defs", "-Wl,--build-id=none")
_WITHOUT = "or build without compiled extensions: --without-extensions"
_GLIBC = ("libc.so", "libm.so", "ld-linux")


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """The g++ that is used: `program` as CXX names it, and what it says that it is."""

    program: str
    version: Version
    machine: str

    @property
    def name(self) -> str:
        """The compiler, as a receipt states it."""
        return f"g++ {self.version} for {self.machine}"


def compiler_for(extensions: Iterable[Extension]) -> Compiler:
    """This machine's compiler. Raises `MissingToolsError` when there is none, or one too old for them."""
    program = os.environ.get("CXX", "g++")
    oldest = max(extension.compiler for extension in extensions)
    version = toolchain.compiler(program)
    if version is not None and version >= oldest:
        return Compiler(program=program, version=version, machine=platform.machine())
    found = f"{program} is {version}" if version else f"there is no {program}"
    raise MissingToolsError(
        f"the compiled extensions of this wheel need g++ {oldest} or newer, and {found}.",
        why="they are compiled here: " + ", ".join(extension.path for extension in extensions),
        next=f"apt-get install g++, let CXX name a newer one, {_WITHOUT}",
    )


def compiled(
    extension: Extension,
    sources: Mapping[str, bytes],
    compiler: Compiler,
    base: str,
    dest: Path,
    glibc: str | None = None,
) -> Path:
    """The shared object of an extension at `dest`, whole or not at all.

    `sources` are its files by their paths in the tree, `base` the file name of the wheel that it
    goes into, `glibc` what that one's own members need. Raises `SourceBuildError` when it does not
    compile, or when it would need more of a machine than the base wheel's tag promises and its members
    need; `MissingToolsError` when the wheel is for another machine.
    """
    _refuse_foreign(base, compiler)
    with tempfile.TemporaryDirectory(prefix="dspatch-extension-") as name:
        folder = Path(name)
        for path, data in sources.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        made = _linked(extension, compiler, folder)
        _refuse_needy(extension, made, base, glibc)
        write_atomically(dest, made.read_bytes())
    return dest


def _linked(extension: Extension, compiler: Compiler, folder: Path) -> Path:
    units = [u for u in extension.units if not u.machines or compiler.machine in u.machines]
    objects = []
    for number, unit in enumerate(units):
        _run(extension, _compile(extension, unit, compiler, f"{number}.o"), folder)
        objects.append(f"{number}.o")
    libraries = [f"-l{name}" for name in extension.libraries]
    _run(extension, [compiler.program, *_LINK, "-o", "made.so", *objects, *libraries], folder)
    return folder / "made.so"


def _compile(extension: Extension, unit: Unit, compiler: Compiler, to: str) -> list[str]:
    flags = [*_COMPILE, *extension.flags, *unit.flags]
    return [compiler.program, *flags, "-c", unit.source, "-o", to]


def _run(extension: Extension, command: list[str], folder: Path) -> None:
    try:
        # The user's flags would change the object, and nothing would say so.
        process.run(command, cwd=folder, env={"LC_ALL": "C", "CPATH": "", "COMPILER_PATH": ""})
    except ProcessError as error:
        raise SourceBuildError(
            f"{extension.path} could not be compiled.", why=error.why, next=_WITHOUT[3:]
        ) from None


def _refuse_foreign(base: str, compiler: Compiler) -> None:
    platforms = [tag.platform for tag in parse_wheel_filename(base)[3]]
    if not any(name == "any" or name.endswith(f"_{compiler.machine}") for name in platforms):
        raise MissingToolsError(
            f"the compiled extensions of {base} cannot be compiled on {compiler.machine}.",
            why=f"the wheel is for {', '.join(sorted(platforms))}",
            next=f"build it on such a machine, {_WITHOUT}",
        )


def _refuse_needy(extension: Extension, made: Path, base: str, glibc: str | None) -> None:
    needs = object_needs(made, extension.path)
    odd = [name for name in needs.libraries if not name.startswith(_GLIBC)]
    promised = list(_glibc(base))
    # Some tags promise less than their wheels can do with; no machine that runs those is shut out.
    promised += [tuple(map(int, glibc.split(".")))] if promised and glibc else []
    too_new = needs.glibc and promised and needs.glibc > max(promised)
    if not odd and not too_new:
        return
    what = f"the libraries {', '.join(odd)}" if odd else f"GLIBC {dotted(needs.glibc or ())}"
    raise SourceBuildError(
        f"{extension.path} needs {what}, which its wheel does not promise.",
        why=f"the base wheel is {base}",
        next=f"leave out what asks for it, {_WITHOUT}",
    )


def _glibc(base: str) -> Iterator[tuple[int, ...]]:
    """The versions of glibc that a wheel's tags promise to do with."""
    for tag in parse_wheel_filename(base)[3]:
        words = tag.platform.split("_")
        if words[0] == "manylinux":
            yield int(words[1]), int(words[2])
