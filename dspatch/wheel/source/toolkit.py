"""A CUDA toolkit made whole for a build: what it lacks of headers and libraries joined to it, by links."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from dspatch import process
from dspatch.errors import MissingToolsError
from dspatch.wheel.source.recipe import Recipe
from dspatch.wheel.source.toolchain import Toolchain

# A toolkit's folders that tools look into; `lib64` is one of NVIDIA's names for `lib`.
_FOLDERS = ("bin", "include", "lib", "lib/stubs", "nvvm")
_STUB = "libcuda.so"
_FUNCTION = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(")


def packages(recipe: Recipe, found: Toolchain) -> dict[str, str]:
    """The package of the index that has each header which this machine's toolkit lacks."""
    known = recipe.toolkit.get(str(found.nvcc.major), {}) if found.nvcc else {}
    return {header: text for header, text in known.items() if header not in found.headers}


def joined(home: Path, site: Path, place: Path) -> Path:
    """A folder of links to the toolkit at `home` and to NVIDIA's packages in `site`, made anew in `place`.

    The toolkit's own files win. Where it has no driver library to link with, a stub with the
    functions of its cuda.h stands for it: the driver itself comes with the card. Raises
    `MissingToolsError` where there is no such toolkit.
    """
    if not (home / "include" / "cuda.h").is_file():
        raise MissingToolsError(
            f"{home} is no CUDA toolkit.", why="it has no include/cuda.h", next="set CUDA_HOME"
        )
    shutil.rmtree(place, ignore_errors=True)
    for folder in _FOLDERS:
        _link(place / folder, _files(home, site, folder))
    _link(place, {"lib64": place / "lib"})
    if not _drivers(place):
        _stub(place)
    return place


def _files(home: Path, site: Path, folder: str) -> Mapping[str, Path]:
    found = dict[str, Path]()
    for package in sorted(site.glob(f"nvidia/*/{folder}")):
        for path in sorted(package.iterdir()):
            found |= dict.fromkeys(_names(path), path)
    found |= {path.name: path for path in _own(home, folder)}
    # It is a folder of its own: through a link, ours would be written into the toolkit.
    found.pop("stubs", None)
    return found


def _own(home: Path, folder: str) -> list[Path]:
    """What a toolkit has in a folder; NVIDIA's installer makes no `lib` beside `lib64`."""
    places = (home / folder.replace("lib", "lib64"), home / folder)
    there = next((place for place in places if place.is_dir()), None)
    return sorted(there.iterdir()) if there else []


def _names(path: Path) -> Iterator[str]:
    """A library is linked by its name without a version, which packages of an index leave out."""
    yield path.name
    if ".so." in path.name:
        yield f"{path.name.partition('.so.')[0]}.so"


def _link(folder: Path, wanted: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in wanted.items():
        (folder / name).symlink_to(path.absolute())


def _drivers(place: Path) -> bool:
    return any((place / "lib" / folder / _STUB).exists() for folder in ("", "stubs"))


def _stub(place: Path) -> None:
    source = place / "include" / "cuda.h"
    header = process.run(
        ["g++", "-E", f"-I{place / 'include'}", "-x", "c++", "-"], stdin="#include <cuda.h>\n"
    )
    names = sorted(set(_FUNCTION.findall(header.stdout)))
    text = "".join(f"void {name}(void) {{}}\n" for name in names)
    stub = place / "lib" / "stubs" / _STUB
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    process.run([*command, "-o", str(stub)], stdin=text)
    # As old as what it is made of: a build that goes on links nothing anew for it.
    made = source.stat().st_mtime_ns
    os.utime(stub, ns=(made, made))
