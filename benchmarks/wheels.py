"""A wheel of the package index by its hash, and the members of it that a benchmark reads."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One file of a project; what it is, is said by its SHA-256."""

    project: str
    filename: str
    sha256: str

    def path(self, given: Sequence[Path] = ()) -> Path:
        """Where it is on this disk: among the files given, or downloaded.

        Raises SystemExit where a file of its name is another, DspatchError where it cannot be had.
        """
        from dspatch import files, index  # here, as the rest runs where dspatch is not

        for path in given:
            if path.name == self.filename:
                if files.sha256(path) != self.sha256:
                    raise SystemExit(f"{path} is not the {self.filename} that is measured against")
                return path
        return index.download(self.project, self.filename, self.sha256)

    def take(self, folder: Path, members: Sequence[str], given: Sequence[Path] = ()) -> None:
        """Put single members into a folder, under their own name without their path."""
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(self.path(given)) as archive:
            for member in members:
                (folder / Path(member).name).write_bytes(archive.read(member))

    def unpack(self, folder: Path, beginnings: Sequence[str], given: Sequence[Path] = ()) -> None:
        """Unpack the members whose paths begin so."""
        with zipfile.ZipFile(self.path(given)) as archive:
            archive.extractall(folder, _beginning(archive, tuple(beginnings)))


def _beginning(archive: zipfile.ZipFile, beginnings: tuple[str, ...]) -> Iterator[str]:
    return (name for name in archive.namelist() if name.startswith(beginnings))


def unknown(given: Sequence[Path], wanted: Sequence[Wheel]) -> list[str]:
    """What is wrong with files given on a command line: absent, or none of the wheels wanted."""
    names = [wheel.filename for wheel in wanted]
    said = [f"{path} is no file" for path in given if not path.is_file()]
    known = ", ".join(names)
    return said + [
        f"{path.name} is none of {known}"
        for path in given
        if path.is_file() and path.name not in names
    ]
