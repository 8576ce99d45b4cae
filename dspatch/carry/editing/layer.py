"""The layers of a series changed: tried in copies, then written in one transaction."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dspatch import paths
from dspatch import series as series_module
from dspatch.carry.editing import folder
from dspatch.errors import DspatchError, PatchFormatError
from dspatch.patchfile import Patch
from dspatch.series import Series

_HEAD = "# Own patches of {engine}, in the order they apply; `!name` leaves out one that ships.\n"
Changes = Mapping[Path, bytes | None]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Changes to the patch folders of an engine that are not yet written."""

    engine: str
    changes: dict[Path, bytes | None] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        """The folder of the user's own patches."""
        return paths.own_patches() / self.engine

    def home(self, patch: Patch) -> Path:
        """The real folder of a patch that was read from a copy."""
        root = paths.data("patches") if patch.shipped else paths.own_patches()
        return root / self.engine / patch.name

    def read(self, path: Path) -> bytes | None:
        """A file as the draft leaves it."""
        if path in self.changes:
            return self.changes[path]
        return path.read_bytes() if path.is_file() else None

    def add(self, name: str, files: Mapping[str, bytes]) -> None:
        """A new patch at the end of the own series."""
        for file, data in files.items():
            self.changes[self.own / name / file] = data
        self.set_lines([*self.lines(), name])

    def lines(self) -> list[str]:
        """The lines of the own series."""
        text = self.read(self.own / "series")
        return (text or _HEAD.format(engine=self.engine).encode()).decode().splitlines()

    def set_lines(self, lines: Sequence[str]) -> None:
        """Give the own series these lines."""
        self.changes[self.own / "series"] = "".join(f"{line}\n" for line in lines).encode()

    @contextmanager
    def tried(self) -> Iterator[Series]:
        """The series as the draft would leave it, read from copies."""
        with tempfile.TemporaryDirectory() as place:
            moved = _copies(self.engine, Path(place))
            for path, data in self.changes.items():
                _write(_in_copy(path, moved), data)
            try:
                series = series_module.layered(self.engine, at=lambda path: moved.get(path, path))
            except DspatchError as error:
                raise _of_the_real(error, moved) from None
            yield series

    def write(self) -> None:
        """Write the draft, all of it or nothing; the caller holds `editing`."""
        if self.changes:
            folder.change(self.own, self.changes)


@contextmanager
def editing(engine: str) -> Iterator[Draft]:
    """A draft to fill, while no other process changes the engine's own patches."""
    with folder.editing(paths.own_patches() / engine):
        yield Draft(engine=engine)


def refuse_installed(patch: Patch) -> None:
    """Raise `PatchFormatError` for a patch inside the installed package, which is not the user's to change."""
    if paths.is_installed(patch.folder):
        raise PatchFormatError(
            f"{patch.name} ships with the installed dspatch and cannot be changed there.",
            why=f"{patch.folder} would be lost with the next upgrade",
            next="work from a checkout of dspatch, point DSPATCH_DATA at a copy of its patches and"
            f" templates, or leave it out (dspatch patch drop {patch.name}) and add your own",
        )


def _copies(engine: str, place: Path) -> dict[Path, Path]:
    """Copies of the folders of both layers, and which is whose."""
    real = (
        paths.data("patches"),
        paths.data("templates"),
        paths.own_patches(),
        paths.own_templates(),
    )
    moved: dict[Path, Path] = {}
    for number, root in enumerate(dict.fromkeys(real)):
        moved[root / engine] = place / str(number) / engine
        if (root / engine).is_dir():
            ignored = shutil.ignore_patterns(folder.JOURNAL, "__pycache__")
            shutil.copytree(root / engine, moved[root / engine], ignore=ignored)
    return moved


def _in_copy(path: Path, moved: Mapping[Path, Path]) -> Path:
    for real, copy in moved.items():
        if path.is_relative_to(real):
            return copy / path.relative_to(real)
    raise ValueError(f"{path} is in no layer")


def _of_the_real(error: DspatchError, moved: Mapping[Path, Path]) -> DspatchError:
    """An error in a copy, told of the file that the copy stands for."""
    for real, copy in moved.items():
        error.what = error.what.replace(str(copy), str(real))
        error.why = error.why.replace(str(copy), str(real))
    return error


def _write(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
