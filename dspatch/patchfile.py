"""One patch folder in: `patch.toml` and the forms beside it, read with errors that name file and line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dspatch import astfind, extensionspec, tomlfile
from dspatch.edits import VERBS, Verb
from dspatch.errors import PatchFormatError
from dspatch.extensionspec import Extension
from dspatch.traits import Trait, Traits

TARGETS = ("cpu", "cuda")
OPTIONS = (
    "output-format",
    "with",
)  # how a job asks for a patch: by `--output-format`, by `--with NAME`
FORM_SUFFIX = ".diff"

_PATCH_KEYS = (
    "subject", "reason", "upstream", "drop-when", "targets", "needs", "families", "reference-ops",
    "written-for", "also-written-for", "fuzz", "waive", "upstream-test", "numbers", "file", "edit",
    "extension", "option", "at",
)  # fmt: skip
_FILE_KEYS = ("path", "template", "when")
_EDIT_KEYS = ("file", "symbol", "verb", "find", "text", "when")
_WAIVE_KEYS = ("symbol", "reason", "shape")
# Begins a path in the folder of the package that the trait `at` names.
HERE = "@/"


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
    find: str
    text: str
    when: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The whole change as a plain diff, made on one revision: a release's, or 40 digits of a commit."""

    made_on: str
    path: Path

    @property
    def diff(self) -> str:
        """The diff, decoded with `surrogateescape`."""
        return self.path.read_bytes().decode("utf-8", "surrogateescape")


@dataclass(frozen=True, kw_only=True)
class Fuzz:
    """How few lines around a hunk may match, and why that is safe here."""

    context: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Waived:
    """An upstream symbol that may differ from what the patch was written for; `shape` narrows it to one form."""

    symbol: str
    reason: str
    shape: str | None = None


@dataclass(frozen=True, kw_only=True)
class UpstreamTest:
    """A test that fails without the patch: `file` in the patch's folder, `path` in upstream's tree."""

    file: Path
    path: str


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One change with one reason.

    `files` and `edits` render it on any revision; `forms` are the change as diffs, each made on
    one revision. `shipped` says that it came with dspatch, not from the user's own layer. `option`
    is how a job must ask to have it. Paths that begin with `@/` lie in the folder of the package
    that the trait `at` names; `package` is that package once it is known.
    """

    name: str
    folder: Path
    templates: Path
    shipped: bool
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
    extensions: tuple[Extension, ...] = ()
    forms: tuple[Form, ...] = ()
    written_for: str | None = None
    also_written_for: tuple[str, ...] = ()
    fuzz: Fuzz | None = None
    waived: tuple[Waived, ...] = ()
    upstream_test: UpstreamTest | None = None
    numbers: str | None = None
    option: str | None = None
    at: str | None = None
    package: str = ""

    def placed(self, facts: Traits) -> Patch:
        """The patch with the paths that it has on this checkout, where the trait `at` says so.

        Raises `PatchFormatError` where the trait has no value.
        """
        if self.at is None:
            return self
        package = facts.get_or_none(self.at)
        if package is None:
            raise PatchFormatError(
                f"{self.name}: `at` is {self.at}, which has no value on this checkout.",
                next=f"let `needs` leave out such checkouts, or give {self.at} a value there",
            )
        return self.within(str(package))

    def within(self, package: str) -> Patch:
        """The patch with its paths in the folder of a package, by the package's dotted name."""
        return replace(
            self,
            package=package,
            files=tuple(replace(each, path=_below(package, each.path)) for each in self.files),
            edits=tuple(replace(each, file=_below(package, each.file)) for each in self.edits),
            extensions=tuple(
                each.moved(lambda path: _below(package, path)) for each in self.extensions
            ),
        )

    def with_forms(self, more: tuple[Form, ...]) -> Patch:
        """The patch with more forms; one of them stands for that of its own on the same revision."""
        others = {form.made_on for form in more}
        kept = tuple(form for form in self.forms if form.made_on not in others)
        return replace(self, forms=(*more, *kept)) if more else self

    @property
    def renders(self) -> bool:
        """Whether the change is rendered from templates and edits, not only held as diffs."""
        return bool(self.files or self.edits)

    def asks(self, known: Collection[str]) -> tuple[str, ...]:
        """The traits on which it depends what code the patch is, sorted.

        Those of its conditions and of its place, and those that its texts and templates mention.
        """
        conditions = [name for file in self.files for name in file.when]
        conditions += [name for edit in self.edits for name in edit.when]
        texts = [edit.text for edit in self.edits]
        texts += [(self.templates / file.template).read_text() for file in self.files]
        words = {word for text in texts for word in re.findall(r"\w+", text)}
        found = {name.removeprefix("!") for name in conditions} | words.intersection(known)
        return tuple(sorted(found | set(filter(None, [self.at]))))

    @property
    def message(self) -> str:
        """The commit message: subject, reason, and where the patch stands with upstream."""
        return (
            f"{self.subject}\n\n{self.reason.strip()}\n\n"
            f"Patch: {self.name}\nUpstream: {self.upstream}\nDrop-when: {self.drop_when}\n"
        )


def load(
    folder: Path, known: Mapping[str, Trait], templates: Path, *, shipped: bool = True
) -> Patch:
    """Read a patch folder; raises `PatchFormatError`."""
    source = tomlfile.load(folder / "patch.toml", PatchFormatError)
    table = source.data
    source.check_keys(table, _PATCH_KEYS)
    _check_upstream(source, source.get(table, "upstream", str))
    targets = source.strings(table, "targets")
    if not targets or set(targets) - set(TARGETS):
        raise source.fail(f"`targets` must be one or more of {', '.join(TARGETS)}", key="targets")
    files = tuple(
        _new_file(source, item, known, templates)
        for item in source.tables(table, "file", _FILE_KEYS)
    )
    edits = tuple(_edit(source, item, known) for item in source.tables(table, "edit", _EDIT_KEYS))
    forms = forms_in(folder)
    if not files and not edits and not forms:
        raise source.fail(
            f"a patch needs at least one [[file]], one [[edit]], or a diff beside it (REV{FORM_SUFFIX})"
        )
    return Patch(
        name=folder.name,
        folder=folder,
        templates=templates,
        shipped=shipped,
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
        extensions=_extensions(source, files),
        forms=forms,
        written_for=source.get(table, "written-for", str) if "written-for" in table else None,
        also_written_for=source.strings(table, "also-written-for"),
        fuzz=_fuzz(source),
        waived=tuple(_waived(source, item) for item in source.tables(table, "waive", _WAIVE_KEYS)),
        upstream_test=_upstream_test(source, folder),
        numbers=source.get(table, "numbers", str) if "numbers" in table else None,
        option=_option(source),
        at=_at(source, known, [*(new.path for new in files), *(edit.file for edit in edits)]),
    )


def holds(names: Iterable[str], facts: Traits) -> str | None:
    """The first trait that does not hold, or `None`; `!name` asks for a trait to be absent."""
    for name in names:
        wanted = not name.startswith("!")
        if bool(facts.get_or_none(name.removeprefix("!"))) != wanted:
            return name
    return None


def forms_in(folder: Path) -> tuple[Form, ...]:
    """The forms that lie in a folder, by name."""
    return tuple(
        Form(made_on=path.name.removesuffix(FORM_SUFFIX), path=path)
        for path in sorted(folder.glob(f"*{FORM_SUFFIX}"))
    )


def _extensions(source: tomlfile.TomlFile, files: tuple[NewFile, ...]) -> tuple[Extension, ...]:
    rendered = {file.path for file in files}
    found = extensionspec.read(source, source.data)
    for unit in (unit for extension in found for unit in extension.units):
        if unit.source not in rendered:
            raise source.fail(
                f"`{unit.source}` is no [[file]] of this patch", key="units", within="extension"
            )
    return found


def _at(source: tomlfile.TomlFile, known: Mapping[str, Trait], paths: Iterable[str]) -> str | None:
    if "at" not in source.data:
        if any(path.startswith(HERE) for path in paths):
            raise source.fail(
                f"`{HERE}` begins a path, and no `at` names the trait that says where"
            )
        return None
    name = source.get(source.data, "at", str)
    if name not in known or "first_of" not in known[name].question:
        raise source.fail(f"`{name}` is no trait with a value in traits.toml", key="at")
    return name


def _below(package: str, path: str) -> str:
    folder = package.replace(".", "/")
    return f"{folder}/{path.removeprefix(HERE)}" if path.startswith(HERE) else path


def _text(
    source: tomlfile.TomlFile, key: str, table: Mapping[str, Any] | None = None, within: str = ""
) -> str:
    value = source.get(source.data if table is None else table, key, str, within=within)
    if not value.strip():
        raise source.fail(f"`{key}` must say something", key=key, within=within)
    return value


def _check_upstream(source: tomlfile.TomlFile, value: str) -> None:
    never = value.startswith("never:") and len(value) > len("never: x")
    if not value.startswith("https://") and not never:
        raise source.fail("`upstream` must be an https link or `never: why`", key="upstream")


def _fuzz(source: tomlfile.TomlFile) -> Fuzz | None:
    if "fuzz" not in source.data:
        return None
    table: dict[str, Any] = source.get(source.data, "fuzz", dict)
    source.check_keys(table, ("context", "reason"), within="fuzz")
    context = source.get(table, "context", int, within="fuzz")
    if context < 1:
        raise source.fail("`context` must be 1 or more lines", key="context", within="fuzz")
    return Fuzz(context=context, reason=_text(source, "reason", table, "fuzz"))


def _waived(source: tomlfile.TomlFile, item: dict[str, Any]) -> Waived:
    return Waived(
        symbol=_text(source, "symbol", item, "waive"),
        reason=_text(source, "reason", item, "waive"),
        shape=source.get(item, "shape", str, within="waive") if "shape" in item else None,
    )


def _upstream_test(source: tomlfile.TomlFile, folder: Path) -> UpstreamTest | None:
    if "upstream-test" not in source.data:
        return None
    table: dict[str, Any] = source.get(source.data, "upstream-test", dict)
    source.check_keys(table, ("file", "path"), within="upstream-test")
    file = folder / _path(source, table, "file", "upstream-test")
    if not file.is_file():
        raise source.fail(f"{file.name} is not in the patch's folder", key="upstream-test")
    return UpstreamTest(file=file, path=_path(source, table, "path", "upstream-test"))


def _option(source: tomlfile.TomlFile) -> str | None:
    if "option" not in source.data:
        return None
    name = source.get(source.data, "option", str)
    if name not in OPTIONS:
        raise source.fail(
            f"`option` must be one of {', '.join(OPTIONS)}, not {name!r}", key="option"
        )
    return name


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
    template = _path(source, item, "template", "file")
    if not (templates / template).is_file():
        raise source.fail(f"template {template} does not exist", key="template", within="file")
    return NewFile(
        path=_path(source, item, "path", "file"),
        template=template,
        when=_known_traits(source, item, "when", known),
    )


def _edit(source: tomlfile.TomlFile, item: dict[str, Any], known: Mapping[str, Trait]) -> EditSpec:
    verb = source.get(item, "verb", str, within="edit")
    if verb not in VERBS:
        raise source.fail(
            f"`verb` must be one of {', '.join(VERBS)}, not {verb!r}", key="verb", within="edit"
        )
    find = source.get(item, "find", str, within="edit")
    try:
        astfind.pattern(find)
    except SyntaxError as error:
        raise source.fail(f"`find` is not Python: {error.msg}", key="find", within="edit") from None
    return EditSpec(
        file=_path(source, item, "file", "edit"),
        symbol=item.get("symbol"),
        verb=verb,
        find=find,
        text=source.get(item, "text", str, within="edit"),
        when=_known_traits(source, item, "when", known),
    )
