"""Patch folders in, the ordered series out; and which of its patches a checkout needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dspatch import astfind, tomlfile, traits
from dspatch.edits import VERBS, Verb
from dspatch.errors import PatchFormatError, UnknownEngineError
from dspatch.traits import Trait, Traits

TARGETS = ("cpu", "cuda")
Status = Literal["applies", "not needed", "other target", "other variant"]

_PATCH_KEYS = (
    "subject", "reason", "upstream", "drop-when", "targets", "needs", "families",
    "reference-ops", "file", "edit",
)  # fmt: skip
_FILE_KEYS = ("path", "template", "when")
_EDIT_KEYS = ("file", "symbol", "verb", "find", "text", "when")


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file that a patch renders: where it goes, and from which template."""

    path: str
    template: str
    when: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class EditSpec:
    """A semantic edit whose text is not yet rendered."""

    file: str
    symbol: str | None
    verb: Verb
    find: str | None
    text: str
    when: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One change with one reason."""

    name: str
    folder: Path
    subject: str
    reason: str
    upstream: str
    drop_when: str
    targets: tuple[str, ...]
    needs: tuple[str, ...]
    families: tuple[str, ...]
    reference_ops: tuple[str, ...]
    files: tuple[NewFile, ...]
    edits: tuple[EditSpec, ...]

    @property
    def message(self) -> str:
        """The commit message: subject, reason, and where the patch stands with upstream."""
        return (
            f"{self.subject}\n\n{self.reason.strip()}\n\n"
            f"Patch: {self.name}\nUpstream: {self.upstream}\nDrop-when: {self.drop_when}\n"
        )


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
class Series:
    """The ordered patches of one engine, with the traits and templates they rest on."""

    engine: str
    patches: tuple[Patch, ...]
    traits: Mapping[str, Trait]
    folder: Path
    templates: Path

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

    @cached_property
    def digest(self) -> str:
        """sha256 of everything a rendering depends on: series, patches, traits, templates."""
        return digest_of([self.folder, self.templates])

    def patch_digest(self, patch: Patch) -> str:
        """sha256 of one patch: its folder and the templates it names."""
        return digest_of([patch.folder, *(self.templates / file.template for file in patch.files)])

    def plan(
        self, facts: Traits, target: str, families: Iterable[frozenset[str]]
    ) -> tuple[Planned, ...]:
        """Which patches apply to a checkout, for a target and the families of the job's variants."""
        wanted = list(families)
        return tuple(_planned(patch, facts, target, wanted) for patch in self.patches)


def load(engine: str, patches: Path, templates: Path) -> Series:
    """Read the series of an engine; raises `PatchFormatError` with file and line."""
    folder = patches / engine
    if not (folder / "series").is_file():
        raise UnknownEngineError(
            f"there is no patch series for `{engine}`.", why=f"{folder / 'series'} does not exist"
        )
    known = traits.load(folder / "traits.toml")
    names = _names(folder)
    return Series(
        engine=engine,
        patches=tuple(_load_patch(folder / name, known, templates / engine) for name in names),
        traits=known,
        folder=folder,
        templates=templates / engine,
    )


def digest_of(paths: Sequence[Path]) -> str:
    """sha256 over the names and bytes of files and folders, in a fixed order."""
    total = hashlib.sha256()
    for root in paths:
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        for path in files:
            name = path.relative_to(root).as_posix() if root.is_dir() else path.name
            if "__pycache__" in name:
                continue
            data = path.read_bytes()
            total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def _names(folder: Path) -> list[str]:
    path = folder / "series"
    names: list[str] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        name = line.split("#", 1)[0].strip()
        if not name:
            continue
        if name in names:
            raise PatchFormatError(f"{path}, line {number}: `{name}` is listed twice.")
        if not (folder / name / "patch.toml").is_file():
            raise PatchFormatError(
                f"{path}, line {number}: there is no {name}/patch.toml.",
                next="remove the line or add the patch",
            )
        names.append(name)
    present = {p.parent.name for p in folder.glob("*/patch.toml")}
    for name in sorted(present - set(names)):
        raise PatchFormatError(
            f"{path}: patch `{name}` is not listed.",
            why="a patch that the series does not name would never be applied",
            next="add its line, or remove its folder",
        )
    return names


def _load_patch(folder: Path, known: Mapping[str, Trait], templates: Path) -> Patch:
    source = tomlfile.load(folder / "patch.toml", PatchFormatError)
    table = source.data
    source.check_keys(table, _PATCH_KEYS)
    _check_upstream(source, source.get(table, "upstream", str))
    targets = source.strings(table, "targets")
    if not targets or set(targets) - set(TARGETS):
        raise source.fail(f"`targets` must be one or more of {', '.join(TARGETS)}", key="targets")
    files = tuple(_new_file(source, item, known, templates) for item in _tables(source, "file"))
    edits = tuple(_edit(source, item, known) for item in _tables(source, "edit"))
    if not files and not edits:
        raise source.fail("a patch needs at least one [[file]] or [[edit]]")
    return Patch(
        name=folder.name,
        folder=folder,
        subject=_text(source, "subject"),
        reason=_text(source, "reason"),
        upstream=source.get(table, "upstream", str),
        drop_when=_text(source, "drop-when"),
        targets=targets,
        needs=_known_traits(source, table, "needs", known),
        families=source.strings(table, "families"),
        reference_ops=source.strings(table, "reference-ops"),
        files=files,
        edits=edits,
    )


def _text(source: tomlfile.TomlFile, key: str) -> str:
    value = source.get(source.data, key, str)
    if not value.strip():
        raise source.fail(f"`{key}` must say something", key=key)
    return value


def _check_upstream(source: tomlfile.TomlFile, value: str) -> None:
    never = value.startswith("never:") and len(value) > len("never: x")
    if not value.startswith("https://") and not never:
        raise source.fail("`upstream` must be an https link or `never: why`", key="upstream")


def _tables(source: tomlfile.TomlFile, key: str) -> list[dict[str, Any]]:
    items = source.get(source.data, key, list, default=[])
    if not all(isinstance(item, dict) for item in items):
        raise source.fail(f"`{key}` must be tables, written [[{key}]]", key=key)
    return items


def _known_traits(
    source: tomlfile.TomlFile, table: Mapping[str, Any], key: str, known: Mapping[str, Trait]
) -> tuple[str, ...]:
    names = source.strings(table, key)
    for name in names:
        if name.removeprefix("!") not in known:
            raise source.fail(f"`{name}` is no trait of traits.toml", key=key)
    return names


def _path(source: tomlfile.TomlFile, item: Mapping[str, Any], key: str, within: str) -> str:
    value = source.get(item, key, str, within=within)
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not value:
        raise source.fail(
            f"`{key}` must be a path inside the tree, not {value!r}", key=key, within=within
        )
    return value


def _new_file(
    source: tomlfile.TomlFile, item: dict[str, Any], known: Mapping[str, Trait], templates: Path
) -> NewFile:
    source.check_keys(item, _FILE_KEYS, within="file")
    template = _path(source, item, "template", "file")
    if not (templates / template).is_file():
        raise source.fail(f"template {template} does not exist", key="template", within="file")
    return NewFile(
        path=_path(source, item, "path", "file"),
        template=template,
        when=_known_traits(source, item, "when", known),
    )


def _edit(source: tomlfile.TomlFile, item: dict[str, Any], known: Mapping[str, Trait]) -> EditSpec:
    source.check_keys(item, _EDIT_KEYS, within="edit")
    verb = source.get(item, "verb", str, within="edit")
    if verb not in VERBS:
        raise source.fail(
            f"`verb` must be one of {', '.join(VERBS)}, not {verb!r}", key="verb", within="edit"
        )
    find = item.get("find")
    if (find is None) != (verb == "append"):
        raise source.fail(
            f"an edit `{verb}` {'takes no' if find else 'needs a'} `find`", within="edit"
        )
    if find is not None:
        try:
            astfind.pattern(source.get(item, "find", str, within="edit"))
        except SyntaxError as error:
            raise source.fail(
                f"`find` is not Python: {error.msg}", key="find", within="edit"
            ) from None
    return EditSpec(
        file=_path(source, item, "file", "edit"),
        symbol=item.get("symbol"),
        verb=verb,
        find=find,
        text=source.get(item, "text", str, within="edit"),
        when=_known_traits(source, item, "when", known),
    )


def holds(names: Iterable[str], facts: Traits) -> str | None:
    """The first trait that does not hold, or `None`; `!name` asks for a trait to be absent."""
    for name in names:
        wanted = not name.startswith("!")
        if bool(facts.get_or_none(name.removeprefix("!"))) != wanted:
            return name
    return None


def _planned(
    patch: Patch, facts: Traits, target: str, families: Sequence[frozenset[str]]
) -> Planned:
    if target not in patch.targets:
        return Planned(patch=patch, status="other target", why=f"for {', '.join(patch.targets)}")
    if patch.families and not any(set(patch.families) <= have for have in families):
        why = f"no variant of the job is {' and '.join(patch.families)}"
        return Planned(patch=patch, status="other variant", why=why)
    missing = holds(patch.needs, facts)
    if missing is not None:
        what = facts.definitions[missing.removeprefix("!")].what
        absent = "this checkout has: " if missing.startswith("!") else "not in this checkout: "
        return Planned(patch=patch, status="not needed", why=absent + what)
    return Planned(patch=patch, status="applies", why="")
