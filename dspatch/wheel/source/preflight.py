"""What a build lacks on a machine, everything at once, and how many processes fit its memory."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from dspatch.errors import MissingToolsError
from dspatch.wheel.source.recipe import Recipe
from dspatch.wheel.source.toolchain import Toolchain


def check(recipe: Recipe, found: Toolchain) -> None:
    """Raise `MissingToolsError` with all that is missing, and how to get each."""
    _refuse(recipe, list(_lacks(recipe, found)))


def check_cuda(recipe: Recipe, found: Toolchain, torch: Version | None) -> None:
    """Raise `MissingToolsError` unless nvcc is of the CUDA that the build's torch was built with."""
    if not recipe.cuda or found.nvcc is None:
        return
    if torch is None:
        _refuse(recipe, ["torch built with CUDA: the build environment has a CPU build of it"])
    elif (torch.major, torch.minor) != (found.nvcc.major, found.nvcc.minor):
        _refuse(
            recipe,
            [
                f"nvcc of CUDA {torch}, as torch has: this one is {found.nvcc}"
                " (CUDA_HOME names another, --torch another torch)"
            ],
        )


def check_cmake(recipe: Recipe, least: Version | None, found: Version | None) -> None:
    """Raise `MissingToolsError` unless there is a CMake as new as the tree asks for; `None` asks for none."""
    if least is None:
        return
    if found is None:
        _refuse(recipe, [f"CMake {least} or newer: apt-get install cmake"])
    elif found < least:
        _refuse(recipe, [f"CMake {least} or newer: this one is {found} (pip install cmake)"])


def jobs(recipe: Recipe, found: Toolchain, asked: int | None) -> int:
    """How many processes compile at once: as many as there are cores, and as fit into memory."""
    fitting = max(1, min(found.cores, int(found.memory / recipe.memory)))
    return asked or fitting


def _lacks(recipe: Recipe, found: Toolchain) -> Iterator[str]:
    if recipe.compiler and found.compiler is None:
        yield "g++: apt-get install g++"
    elif recipe.compiler and found.compiler and found.compiler < recipe.compiler:
        yield f"g++ {recipe.compiler} or newer: this one is {found.compiler}"
    if recipe.compiler and found.compiler:
        for header, how in recipe.headers.items():
            if header not in found.headers:
                yield f"{header}: {how}"
    if recipe.cuda and found.nvcc is None:
        yield "nvcc: install NVIDIA's CUDA toolkit, or let CUDA_HOME name it"
    if found.memory < recipe.memory:
        yield f"{recipe.memory:.1f} GB of free memory: {found.memory:.1f} are free"
    if found.disk < recipe.disk:
        yield f"{recipe.disk:.1f} GB of free disk: {found.disk:.1f} are free (DSPATCH_WORK moves it)"


def _refuse(recipe: Recipe, lacks: list[str]) -> None:
    if lacks:
        raise MissingToolsError(
            f"{recipe.engine} cannot be built for {recipe.device} on this machine.",
            why="\n        ".join(["it needs", *lacks]),
            next="get what is missing and run the command again; what is built until now stays",
        )
