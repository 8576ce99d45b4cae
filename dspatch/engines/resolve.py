"""What pip would install for some requirements: files by hash, found without installing anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from dspatch import process
from dspatch.errors import MirrorError, ProcessError


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package of a resolution: its file and that file's sha256."""

    project: str
    version: str
    filename: str
    sha256: str

    @property
    def is_wheel(self) -> bool:
        """Whether it can be installed as it is, without being built."""
        return self.filename.endswith(".whl")


def resolve(requirements: Sequence[str]) -> tuple[Package, ...]:
    """The packages that pip would install into an empty environment of this Python.

    pip reads the user's own configuration, as it does when it installs. Raises `MirrorError`.
    """
    with TemporaryDirectory(prefix="dspatch-resolve-") as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--no-input", "--quiet"]
        _pip(
            [*words, "--report", str(report), *requirements],
            f"resolve {len(requirements)} requirements",
        )
        content = json.loads(report.read_text())
    found = tuple(_package(item) for item in content["install"])
    return tuple(sorted(found, key=lambda package: package.project))


def build(package: Package, folder: Path) -> Path:
    """The wheel of a package that has only an sdist, built by pip into a folder. Raises `MirrorError`."""
    wanted = f"{package.project}=={package.version}"
    words = ["wheel", "--no-deps", "--no-input", "--quiet", "--wheel-dir", str(folder), wanted]
    _pip(words, f"build {package.filename}")
    return next(folder.glob("*.whl"))


def _pip(words: Sequence[str], what: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    try:
        process.run([*pip, *words], env={"PYTHONPATH": ""})
    except ProcessError as error:
        raise MirrorError(
            f"pip could not {what}.",
            why=error.why,
            next="check the network and pip's configuration (`pip config list`)",
        ) from None


def _package(item: Mapping[str, Any]) -> Package:
    url = item["download_info"]["url"]
    hashes = item["download_info"].get("archive_info", {}).get("hashes", {})
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    if "sha256" not in hashes:
        raise MirrorError(
            f"{name} {version} cannot be mirrored.",
            why=f"pip takes it from {url}, and states no sha256 of it",
            next="use an index or a folder that has it as a wheel or an sdist",
        )
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    return Package(
        project=canonicalize_name(name),
        version=version,
        filename=filename,
        sha256=hashes["sha256"],
    )
