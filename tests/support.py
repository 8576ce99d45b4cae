"""Generated inputs that tests share: a mini engine, its archives, patch folders."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dspatch import archive
from dspatch import series as series_module
from dspatch.checkout import Checkout, cache_of
from dspatch.git import FILE_MODES, Change, NewCommit
from dspatch.series import Series

PLATFORM = '''\
"""Which backend a platform takes."""


class CpuPlatform:
    name = "cpu"

    @classmethod
    def backend(cls, use_mla: bool, use_sparse: bool) -> str:
        # a comment that stays
        if use_mla:
            raise NotImplementedError("MLA is not supported on CPU.")
        if use_sparse:
            raise NotImplementedError("Sparse is not supported on CPU.")
        return "CPU_ATTN"
'''

REGISTRY = """\
from enum import Enum


class Backend(Enum):
    CPU_ATTN = "mini.cpu_attn"
    FLASH = (
        "mini."
        "flash"
    )


MODELS = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "DeepseekForCausalLM": ("deepseek", "DeepseekForCausalLM"),
}
"""

TRAITS = """\
[refuses_mla]
what = "the CPU platform refuses MLA"
file = "mini/platform.py"
symbol = "CpuPlatform.backend"
contains = 'raise NotImplementedError("MLA is not supported on CPU.")'

[has_registry]
what = "backends are named by an enum"
file = "mini/registry.py"
symbol = "Backend"
"""

PATCH = """\
subject = "Serve MLA on CPU"
reason = "The platform refuses it although a backend can be written."
upstream = "never: a test"
drop-when = "the platform no longer refuses"
targets = ["cpu"]
needs = ["refuses_mla"]

[[file]]
path = "mini/cpu_mla.py"
template = "cpu_mla.py.j2"

[[edit]]
file = "mini/platform.py"
symbol = "CpuPlatform.backend"
verb = "replace"
find = \'\'\'raise NotImplementedError("MLA is not supported on CPU.")\'\'\'
text = \'\'\'return "CPU_MLA"\'\'\'

[[edit]]
file = "mini/registry.py"
symbol = "Backend"
verb = "insert-after"
find = \'\'\'CPU_ATTN = "mini.cpu_attn"\'\'\'
text = \'\'\'CPU_MLA = "mini.cpu_mla"\'\'\'
when = ["has_registry"]
"""

TEMPLATE = '''\
"""The backend."""

<% for variant in variants %>
# ${ variant.name }
<% endfor %>
REGISTERED = ${ traits.has_registry }
'''

MODEL = """\
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
# What a release makes of it, and what a patch does.
SORTED = MODEL.replace("for name, data in weights", "for name, data in sorted(weights)")
LOADS = MODEL.replace("self.copy(name, data)\n", "self.copy(name, data.float())\n")


@dataclass(kw_only=True)
class Upstream:
    """A mini engine of a few files; tests change `files` before they make an archive of it."""

    version: str = "1.0"
    files: dict[str, bytes] = field(
        default_factory=lambda: {
            "mini/__init__.py": b"",
            "mini/platform.py": PLATFORM.encode(),
            "mini/registry.py": REGISTRY.encode(),
            "csrc/kernel.cpp": b"int answer() { return 42; }\n",
            "run.sh": b"#!/bin/sh\n",
        }
    )

    def sdist(self, folder: Path) -> Path:
        """An sdist of the files, the same bytes every time."""
        path = folder / f"mini-{self.version}.tar.gz"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, data in sorted(self.files.items()):
                info = tarfile.TarInfo(f"mini-{self.version}/{name}")
                info.size = len(data)
                info.mode = 0o755 if name.endswith(".sh") else 0o644
                tar.addfile(info, io.BytesIO(data))
        path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
        return path

    def checkout(self, folder: Path) -> Checkout:
        """The pristine tree of the mini engine in a bare cache."""
        members = archive.sdist_members(self.sdist(folder))
        changes = tuple(Change(path=m.path, data=m.data, mode=FILE_MODES[m.mode]) for m in members)
        with cache_of("mini") as repo:
            commit = repo.write_commits(
                f"refs/pristine/test/{self.version}", None,
                [NewCommit(message=f"mini {self.version}", changes=changes)],
            )[0]  # fmt: skip
        tree = repo.resolve(f"{commit}^{{tree}}")
        assert tree is not None
        return Checkout(
            engine="mini", rev=self.version, source="sdist", origin="test",
            repo=repo, commit=commit, tree=tree,
        )  # fmt: skip


def patch_folders(
    root: Path, patches: dict[str, str] | None = None, traits: str = TRAITS
) -> Series:
    """Write patch folders and templates of the mini engine, and read them back."""
    patches = {"cpu-mla": PATCH} if patches is None else patches
    folder = root / "patches" / "mini"
    templates = root / "templates" / "mini"
    templates.mkdir(parents=True, exist_ok=True)
    (templates / "cpu_mla.py.j2").write_text(TEMPLATE)
    for name, text in patches.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "patch.toml").write_text(text)
    (folder / "traits.toml").write_text(traits)
    (folder / "series").write_text("".join(f"{name}\n" for name in patches))
    return load_series(root)


def load_series(root: Path) -> Series:
    """Read the mini engine's series."""
    return series_module.load("mini", root / "patches", root / "templates")


def shared_cache() -> Path:
    """The one folder of downloads and environments that real-engine tests keep between runs."""
    given = os.environ.get("DSPATCH_TEST_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "dspatch-tests"


def dedent(text: str) -> str:
    """A triple-quoted block without its indentation."""
    return textwrap.dedent(text).lstrip("\n")


FORM_PATCH = """\
subject = "{name}"
reason = "A change that is held as a diff."
upstream = "never: a test"
drop-when = "the test is gone"
targets = ["cpu"]
"""


def write_form(folder: Path, forms: dict[str, str], extra: str = "") -> None:
    """Write a patch that is held as diffs, each made on one revision; its folder is new."""
    folder.mkdir(parents=True)
    (folder / "patch.toml").write_text(FORM_PATCH.format(name=folder.name) + extra)
    for rev, diff in forms.items():
        (folder / f"{rev}.diff").write_bytes(diff.encode("utf-8", "surrogateescape"))


def form_patch(root: Path, name: str, forms: dict[str, str], extra: str = "") -> None:
    """Add a patch of the mini engine that is held as diffs."""
    folder = root / "patches" / "mini" / name
    write_form(folder, forms, extra)
    series = folder.parent / "series"
    series.write_text((series.read_text() if series.exists() else "") + f"{name}\n")
    (folder.parent / "traits.toml").touch()


def git(folder: Path, *words: str) -> str:
    """Plain git in a folder, as somebody without dspatch has it; what it prints."""
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def repository(folder: Path, files: Mapping[str, bytes]) -> None:
    """A git repository that holds files in one commit."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")


def numbered(*changed: tuple[int, str]) -> bytes:
    """Sixty lines that name their numbers, some of them changed."""
    lines = [f"line {number}\n" for number in range(60)]
    for number, line in changed:
        lines[number] = line
    return "".join(lines).encode()


@contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A small disk of its own; skipped where none can be mounted."""
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this sandbox mounts no disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
