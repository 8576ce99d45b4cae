"""Releases of a small vLLM on an index, and patches to try on them."""

from __future__ import annotations

import shutil
from pathlib import Path

from dspatch.console import Console
from dspatch.stages import matrix
from dspatch.stages.matrix import Measured, Wanted
from tests.support import PATCH as MINI_PATCH
from tests.support import PLATFORM, REGISTRY, TEMPLATE, TRAITS
from tests.unit import release_files
from tests.unit.index_server import Index, Served

PATCH = MINI_PATCH.replace("mini/", "vllm/")
FILES = release_files.FILES | {
    "vllm/platform.py": PLATFORM.encode(),
    "vllm/registry.py": REGISTRY.encode(),
}
MLA = '            raise NotImplementedError("MLA is not supported on CPU.")\n'
NATIVE_TRAITS = """
[kernel_is_slow]
what = "the kernel is slow"
all = [
    { file = "vllm/platform.py", symbol = "CpuPlatform" },
    { file = "csrc/kernel.cpp", regex = "slow" },
]
"""
NATIVE = """\
subject = "Call the kernel less often"
reason = "It is slow."
upstream = "never: a test"
drop-when = "it is fast"
targets = ["cpu", "cuda"]
needs = ["kernel_is_slow"]

[[edit]]
file = "vllm/engine.py"
verb = "replace"
find = "def run(): ..."
text = "def run(): return None"
"""
HELD = """\
subject = "Name the engine"
reason = "Nobody knows it."
upstream = "never: a test"
drop-when = "somebody does"
targets = ["cuda"]
needs = []
"""


def name_of(version: str, build: str = "") -> str:
    """The file name of a release's wheel."""
    return f"vllm-{version}-{build}cp38-abi3-{release_files.PLATFORM}.whl"


def offer(
    index: Index,
    version: str,
    changed: dict[str, bytes | None] | None = None,
    *,
    native: dict[str, bytes] | None = None,
    **faults: object,
) -> dict[str, bytes]:
    """Publish a release: its wheel, and an sdist when it has native files."""
    both = {**FILES, **(changed or {})}
    files = {path: data for path, data in both.items() if data is not None}
    data = release_files.wheel("vllm", version, files)
    index.add(name_of(version), Served(data=data, **faults), "vllm")
    if native is not None:
        data = release_files.sdist(version, {**files, **native})
        index.add(f"vllm-{version}.tar.gz", Served(data=data), "vllm")
    return files


def write_series(root: Path, patches: dict[str, str], traits: str = "") -> Path:
    """The folder for `DSPATCH_DATA`, with these patches in order."""
    shutil.rmtree(root, ignore_errors=True)
    folder, templates = root / "patches/vllm", root / "templates/vllm"
    templates.mkdir(parents=True)
    (templates / "cpu_mla.py.j2").write_text(TEMPLATE)
    for name, text in patches.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "patch.toml").write_text(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traits.toml").write_text(TRAITS.replace("mini/", "vllm/") + traits)
    (folder / "series").write_text("".join(f"{name}\n" for name in patches))
    return folder


def run(**wanted: object) -> Measured:
    """Measure the small vLLM."""
    return matrix.run(Wanted(**{"engine": "vllm", **wanted}), Console())


def verdicts(done: Measured, patch: str, target: str = "cpu") -> dict[str, str]:
    """A row as verdicts by release."""
    (row,) = (row for row in done.rows if (row.patch, row.target) == (patch, target))
    return {version: cell.verdict for version, cell in row.cells.items()}


def why(done: Measured, patch: str, release: str, target: str = "cpu") -> str:
    """The reason of one cell."""
    (row,) = (row for row in done.rows if (row.patch, row.target) == (patch, target))
    return row.cells[release].why
