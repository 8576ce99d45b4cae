"""Find the installed distribution that a delta is for, in a site-packages or on this Python's path."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import record
from .manifest import Side
from .misfit import Misfit


@dataclass(frozen=True)
class Installed:
    """A distribution in a site-packages (`root`, without symlinks), by the name of its `.dist-info`."""

    root: Path
    info: str
    project: str
    version: str

    @cached_property
    def record(self) -> record.Record:
        """Its RECORD, read once; raises `Misfit` where the installer left none."""
        path = self.root / self.info / "RECORD"
        try:
            return record.read(path.read_bytes())
        except (OSError, UnicodeDecodeError) as error:
            raise Misfit(
                f"{path} cannot be read.", str(error), "install it anew with pip"
            ) from None

    def __str__(self) -> str:
        return f"{self.project} {self.version}"


def find(sides: tuple[Side, ...], given: str | None) -> list[Installed]:
    """Every installed distribution of the projects of these sides; in `given`, or on this Python's path."""
    projects = {canonical(side.project) for side in sides}
    found = [each for root in _roots(given) for each in _distributions(root)]
    return [each for each in found if canonical(each.project) in projects]


def target(root: Path, path: str) -> Path:
    """Where a path lies; raises `Misfit` when a symlink leads it out of site-packages."""
    place = root.joinpath(*path.split("/"))
    parent = Path(os.path.realpath(place.parent))
    if parent != root and root not in parent.parents:
        raise Misfit(
            f"{path} leads out of {root}.",
            f"a symbolic link takes it to {parent}",
            "a delta is for an installed wheel, not for an editable or a linked one",
        )
    return place


def canonical(project: str) -> str:
    """A project's name in its one spelling."""
    return re.sub(r"[-_.]+", "-", project).lower()


def _roots(given: str | None) -> list[Path]:
    if given is not None and not Path(given).is_dir():
        raise Misfit(f"{given} is not a folder.", next="name a site-packages folder")
    places = sys.path if given is None else [given]
    folders = [os.path.realpath(place) for place in places if place and Path(place).is_dir()]
    # lib64 is a link to lib: one folder, two names.
    return [Path(folder) for folder in dict.fromkeys(folders)]


def _distributions(root: Path) -> Iterator[Installed]:
    for folder in sorted(root.glob("*.dist-info")):
        name, version = _named(folder / "METADATA")
        if name and version:
            yield Installed(root=root, info=folder.name, project=name, version=version)


def _named(metadata: Path) -> tuple[str, str]:
    fields = {"name": "", "version": ""}
    try:
        with metadata.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                if key.lower() in fields:
                    fields[key.lower()] = value.strip()
    except OSError:
        pass
    return fields["name"], fields["version"]
