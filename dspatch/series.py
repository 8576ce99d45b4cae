"""Patch folders in, the ordered series out; and which of its patches a checkout needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from dspatch import patchfile, paths, traits
from dspatch.carry.editing.folder import finish
from dspatch.errors import PatchFormatError, UnknownEngineError
from dspatch.outputformat import OutputFormat
from dspatch.patchfile import TARGETS, EditSpec, Form, NewFile, Patch, holds
from dspatch.traits import Trait, Traits

__all__ = [
    "TARGETS", "EditSpec", "Form", "Layer", "NewFile", "Patch", "Planned", "Series", "digest_of",
    "holds", "layered", "load",
]  # fmt: skip

T = TypeVar("T")
Status = Literal[
    "applies", "not needed", "other target", "other variant", "upstream", "left out", "not asked for",
]  # fmt: skip

# `!*` in the user's own series: none of the patches that ship.
EVERY = "*"

# Generated from the rest of the folder, or left by a change that was cut off: no part of what a patch is.
_DERIVED = ("golden/", "uses.toml", "__pycache__/", ".dspatch-staging.")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What becomes of a patch on one checkout, and why."""

    patch: Patch
    status: Status
    why: str

    @property
    def applies(self) -> bool:
        """Whether the patch is part of the computed series."""
        return self.status == "applies"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A folder of patches of one engine, with its templates; `left_out` are patches of other layers."""

    folder: Path
    templates: Path
    shipped: bool
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Series:
    """The ordered patches of one engine, with the traits they rest on: what ships, then the user's own.

    `format` is the output format that is asked for, if any; `extra` are the names of patches that are, with
    `EVERY` all of them.
    """

    engine: str
    patches: tuple[Patch, ...]
    traits: Mapping[str, Trait]
    layers: tuple[Layer, ...]
    format: OutputFormat | None = None
    extra: tuple[str, ...] = ()

    def asking(self, format: OutputFormat | None, extra: Sequence[str]) -> Series:
        """The series for a job that asks for an output format, or none, and for patches beside those of every job.

        Raises `PatchFormatError` for one that there is not, or that every job has.
        """
        for name in extra:
            if name != EVERY and self.patch(name).option != "with":
                raise PatchFormatError(
                    f"`{name}` is not asked for by --with.",
                    why="it is part of every job that needs it, or has an option of its own",
                    next="leave --with out",
                )
        return replace(self, format=format, extra=tuple(extra))

    def patch(self, name: str) -> Patch:
        """The patch of a name. Raises `PatchFormatError` when there is none."""
        for patch in self.patches:
            if patch.name == name:
                return patch
        raise PatchFormatError(
            f"there is no patch `{name}` for {self.engine}.",
            why="patches: " + ", ".join(patch.name for patch in self.patches),
            next=f"dspatch patch list --engine {self.engine}",
        )

    def anywhere(self, patch: Patch) -> tuple[Patch, ...]:
        """The patch in each package that its trait `at` may name, the first first; itself where it has none."""
        if patch.at is None:
            return (patch,)
        packages = self.traits[patch.at].question["first_of"]
        return tuple(patch.within(str(each["value"])) for each in packages)

    @property
    def left_out(self) -> frozenset[str]:
        """The shipped patches that the user's own series leaves out, by name or all with `!*`."""
        named = frozenset(name for layer in self.layers for name in layer.left_out)
        shipped = frozenset(patch.name for patch in self.patches if patch.shipped)
        return shipped if EVERY in named else named

    @cached_property
    def digest(self) -> str:
        """sha256 of everything a rendering depends on: series, patches, traits, templates."""
        folders = [path for layer in self.layers for path in (layer.folder, layer.templates)]
        # A layer of diffs alone has no templates.
        found = digest_of([path for path in folders if path.exists()])
        asked = (self.format, self.extra)
        return found if asked == (None, ()) else f"{found} {asked!r}"

    def patch_digest(self, patch: Patch) -> str:
        """sha256 of one patch: its folder, the templates it names, and own forms of it."""
        templates = [patch.templates / file.template for file in patch.files]
        own_forms = [form.path for form in patch.forms if form.path.parent != patch.folder]
        return digest_of([patch.folder, *templates, *own_forms])

    def plan(
        self, facts: Traits, target: str, families: Iterable[frozenset[str]]
    ) -> tuple[Planned, ...]:
        """Which patches apply to a checkout, for a target and the families of the job's variants."""
        wanted = list(families)
        return tuple(self.planned(patch, facts, target, wanted) for patch in self.patches)

    def planned(
        self, patch: Patch, facts: Traits, target: str, families: Sequence[frozenset[str]]
    ) -> Planned:
        """What becomes of one patch on a checkout."""
        outside = self.outside(patch, target, families)
        if outside is not None:
            return outside
        missing = holds(patch.needs, facts)
        if missing is not None:
            what = facts.definitions[missing.removeprefix("!")].what
            absent = "this checkout has: " if missing.startswith("!") else "not in this checkout: "
            return Planned(patch=patch, status="not needed", why=absent + what)
        return Planned(patch=patch.placed(facts), status="applies", why="")

    def _unasked(self, patch: Patch) -> str:
        """The words that would ask for a patch which nobody asked for."""
        if patch.option == "output-format":
            return "" if self.format is not None else "--output-format FILE"
        named = {patch.name, EVERY} & set(self.extra)
        return f"--with {patch.name}" if patch.option == "with" and not named else ""

    def outside(
        self, patch: Patch, target: str, families: Sequence[frozenset[str]]
    ) -> Planned | None:
        """Why a patch is for no checkout of a target and families; `None` when the checkout decides."""
        if patch.name in self.left_out:
            why = "your own series leaves it out"
            return Planned(patch=patch, status="left out", why=why)
        if unasked := self._unasked(patch):
            return Planned(patch=patch, status="not asked for", why=f"{unasked} asks for it")
        if target not in patch.targets:
            why = f"for {', '.join(patch.targets)}"
            return Planned(patch=patch, status="other target", why=why)
        if patch.families and not any(set(patch.families) <= have for have in families):
            why = f"no variant of the job is {' and '.join(patch.families)}"
            return Planned(patch=patch, status="other variant", why=why)
        return None


def load(engine: str, patches: Path, templates: Path, *, shipped: bool = True) -> Series:
    """Read one layer as a series; raises `PatchFormatError` with file and line."""
    return _joined(engine, [_layer(patches / engine, templates / engine, shipped)])


def layered(engine: str, *, at: Callable[[Path], Path] = lambda path: path) -> Series:
    """The series that ships with dspatch, then the user's own; `at` says where a folder is read.

    Raises `PatchFormatError`, and `UnknownEngineError` when neither has the engine.
    """
    # A change of the patches that was cut off is finished before they are read.
    for place in (paths.data("patches"), paths.own_patches()):
        finish(place / engine)
    shipped, own = at(paths.data("patches") / engine), at(paths.own_patches() / engine)
    layers = []
    if (shipped / "series").is_file():
        layers.append(_layer(shipped, at(paths.data("templates") / engine), shipped=True))
    if (own / "series").is_file() and own.resolve() != shipped.resolve():
        layers.append(_layer(own, at(paths.own_templates() / engine), shipped=False))
    if not layers:
        raise UnknownEngineError(
            f"there is no patch series for `{engine}`.",
            why=f"neither {shipped / 'series'} nor {own / 'series'} exists",
            next=f"dspatch patch new NAME --engine {engine}",
        )
    return _with_own_forms(_joined(engine, layers), own, at(paths.own_templates() / engine))


def _with_own_forms(series: Series, own: Path, templates: Path) -> Series:
    """The series with the user's own forms of patches that ship: diffs in folders of their names.

    So a conflict can be resolved where what ships is installed, and not the user's to change.
    """
    places = {patch.name: own / patch.name for patch in series.patches if patch.shipped}
    forms = {
        name: patchfile.forms_in(place)
        for name, place in places.items()
        if place.resolve() != series.patch(name).folder.resolve()
    }
    added = {name: found for name, found in forms.items() if found}
    if not added:
        return series
    layers = series.layers
    if all(layer.folder != own for layer in layers):
        layers += (Layer(folder=own, templates=templates, shipped=False, names=()),)
    patches = tuple(patch.with_forms(added.get(patch.name, ())) for patch in series.patches)
    return replace(series, patches=patches, layers=layers)


def digest_of(paths: Sequence[Path]) -> str:
    """sha256 over the names and bytes of files and folders, in a fixed order."""
    total = hashlib.sha256()
    for root in paths:
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        for path in files:
            name = path.relative_to(root).as_posix() if root.is_dir() else path.name
            if any(part in name for part in _DERIVED):
                continue
            data = path.read_bytes()
            total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def _joined(engine: str, layers: Sequence[Layer]) -> Series:
    known: dict[str, Trait] = {}
    patches: dict[str, Patch] = {}
    for layer in layers:
        table = layer.folder / "traits.toml"
        if layer.shipped or table.exists():
            _join(known, traits.load(table), f"{table}: trait")
        loaded = {
            name: patchfile.load(layer.folder / name, known, layer.templates, shipped=layer.shipped)
            for name in layer.names
        }
        _check_left_out(layer, patches)
        _join(patches, loaded, f"{layer.folder / 'series'}: patch")
    return Series(
        engine=engine, patches=tuple(patches.values()), traits=known, layers=tuple(layers)
    )


def _join(into: dict[str, T], more: Mapping[str, T], what: str) -> None:
    for name in more:
        if name in into:
            raise PatchFormatError(
                f"{what} `{name}` has the name of one that ships with dspatch.",
                next="give it a name of its own",
            )
    into.update(more)


def _check_left_out(layer: Layer, patches: Mapping[str, Patch]) -> None:
    for name in layer.left_out:
        if name not in (EVERY, *patches):
            raise PatchFormatError(
                f"{layer.folder / 'series'}: `!{name}` leaves out a patch that does not ship.",
                why=f"patches that ship: {', '.join(patches) or 'none'}",
                next="remove the line",
            )


def _layer(folder: Path, templates: Path, shipped: bool) -> Layer:
    path = folder / "series"
    if not path.is_file():
        raise UnknownEngineError(
            f"there is no patch series for `{folder.name}`.", why=f"{path} does not exist"
        )
    names: list[str] = []
    left_out: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        name = line.split("#", 1)[0].strip()
        if name.startswith("!"):
            left_out.append(name.removeprefix("!").strip())
        elif name:
            _check_listed(path, number, name, names)
            names.append(name)
    _check_all_listed(path, names)
    return Layer(
        folder=folder,
        templates=templates,
        shipped=shipped,
        names=tuple(names),
        left_out=tuple(left_out),
    )


def _check_listed(path: Path, number: int, name: str, names: Sequence[str]) -> None:
    if name in names:
        raise PatchFormatError(f"{path}, line {number}: `{name}` is listed twice.")
    if not (path.parent / name / "patch.toml").is_file():
        raise PatchFormatError(
            f"{path}, line {number}: there is no {name}/patch.toml.",
            next="remove the line or add the patch",
        )


def _check_all_listed(path: Path, names: Sequence[str]) -> None:
    present = {p.parent.name for p in path.parent.glob("*/patch.toml")}
    for name in sorted(present - set(names)):
        raise PatchFormatError(
            f"{path}: patch `{name}` is not listed.",
            why="a patch that the series does not name would never be applied",
            next="add its line, or remove its folder",
        )
