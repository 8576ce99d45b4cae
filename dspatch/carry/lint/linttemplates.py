"""Lint rules on templates, traits and edits: used, asking traits and not versions, each place edited once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from dspatch import paths
from dspatch.carry.lint.lint import Fault, Rule
from dspatch.patchfile import Patch
from dspatch.series import Layer, Series, load

_VERSION = re.compile(r"\bv?\d+\.\d+\.\d+(\.post\d+)?\b")
_BRANCH = re.compile(r"<%-?\s*(?:if|elif)\b[^%]*\btraits\.|\$\{[^}]*\bif\b[^}]*\btraits\.")
_INCLUDED = re.compile(r"(?:import|include|from|extends)\s+[\"']([^\"']+)[\"']")
_MAX_BRANCHES = 3
# The one switch that turns every operator into its plain twin.
_REFERENCE_SWITCH = "DSPATCH_REFERENCE_OPS"


def version_literals(series: Series) -> Iterator[Fault]:
    """What a patch does depends on traits of the source, never on a version number."""
    for layer in series.layers:
        for path in _templates(layer):
            yield from _versions("", _below(path, layer.templates), path.read_text())
        traits = layer.folder / "traits.toml"
        if traits.exists():
            yield from _versions("", "traits.toml", traits.read_text())
    for patch in series.patches:
        for edit in patch.edits:
            text = f"{edit.symbol or ''} {edit.find} {edit.text}"
            yield from _versions(patch.name, f"{patch.name}/patch.toml", text)


def _versions(patch: str, where: str, text: str) -> Iterator[Fault]:
    for literal in dict.fromkeys(match.group() for match in _VERSION.finditer(text)):
        yield Fault(
            rule="version", patch=patch, where=where,
            what=f"the version {literal} stands in it", next="ask a trait of traits.toml instead",
        )  # fmt: skip


def branches(series: Series) -> Iterator[Fault]:
    """A template with many branches is several templates."""
    for layer in series.layers:
        for path in _templates(layer):
            found = len(_BRANCH.findall(path.read_text()))
            if found > _MAX_BRANCHES:
                yield Fault(
                    rule="branches", patch="", where=_below(path, layer.templates),
                    what=f"it has {found} trait branches, more than {_MAX_BRANCHES}", next="split it",
                )  # fmt: skip


def unused_templates(series: Series) -> Iterator[Fault]:
    """Every template is named by a patch or by another template."""
    for layer in series.layers:
        named = {f.template for patch in series.patches for f in patch.files}
        text = "".join(path.read_text() for path in _templates(layer))
        text += "".join(edit.text for patch in series.patches for edit in patch.edits)
        named |= set(_INCLUDED.findall(text))
        for path in _templates(layer):
            where = _below(path, layer.templates)
            if where not in named:
                yield Fault(
                    rule="unused", patch="", where=where,
                    what="no patch and no template names it", next="remove it",
                )  # fmt: skip


def unused_traits(series: Series) -> Iterator[Fault]:
    """Every trait is asked by a patch, a template or another trait."""
    asked = {name.removeprefix("!") for patch in series.patches for name in _asked(patch)}
    text = "".join(path.read_text() for layer in series.layers for path in _templates(layer))
    text += "".join(edit.text for patch in series.patches for edit in patch.edits)
    referred = {
        str(value) for trait in series.traits.values() for value in _referred(trait.question)
    }
    for name in series.traits:
        if name not in asked and name not in referred and f"traits.{name}" not in text:
            yield Fault(
                rule="unused", patch="", where="traits.toml",
                what=f"nothing asks the trait `{name}`", next="remove it",
            )  # fmt: skip


def _asked(patch: Patch) -> Iterator[str]:
    yield from patch.needs
    yield from filter(None, [patch.at])
    for file in patch.files:
        yield from file.when
    for edit in patch.edits:
        yield from edit.when


def _referred(question: object) -> Iterator[object]:
    if isinstance(question, list):
        for item in question:
            yield from _referred(item)
    elif hasattr(question, "items"):
        for key, value in question.items():
            yield from [value] if key == "trait" else _referred(value)


def verbs(series: Series) -> Iterator[Fault]:
    """A verb that one shipped patch uses, of all engines, is a special case and not a verb."""
    users: dict[str, set[str]] = defaultdict(set)
    for patch in _shipped(series):
        for edit in patch.edits:
            users[edit.verb].add(patch.name)
    mine = {patch.name for patch in series.patches if patch.shipped}
    for verb, names in sorted(users.items()):
        if len(names) == 1 and names <= mine:
            (only,) = names
            yield Fault(
                rule="verbs",
                patch=only,
                where=f"{only}/patch.toml",
                what=f"no other patch uses the verb `{verb}`",
                next="word its edit with another verb",
            )


def _shipped(series: Series) -> Iterator[Patch]:
    yield from (patch for patch in series.patches if patch.shipped)
    if not any(layer.shipped for layer in series.layers):
        return
    for folder in sorted(paths.data("patches").glob("*/series")):
        if folder.parent.name != series.engine:
            engine = folder.parent.name
            yield from load(engine, paths.data("patches"), paths.data("templates")).patches


def edited_twice(series: Series) -> Iterator[Fault]:
    """Two edits of one patch that seek the same code in the same place: the second finds the first's."""
    for patch in series.patches:
        seen = set()
        for edit in patch.edits:
            place = (edit.file, edit.symbol, edit.find, edit.verb, edit.when)
            if edit.find is not None and place in seen:
                where = f"`{edit.symbol}` of {edit.file}" if edit.symbol else edit.file
                yield Fault(
                    rule="overlap", patch=patch.name, where=f"{patch.name}/patch.toml",
                    what=f"two edits `{edit.verb}` the same code in {where}", next="make them one",
                )  # fmt: skip
            seen.add(place)


def whitespace(series: Series) -> Iterator[Fault]:
    """No line that a patch puts into the engine ends in spaces."""
    for layer in series.layers:
        for path in _templates(layer):
            yield from _trailing("", _below(path, layer.templates), path.read_text())
    for patch in series.patches:
        for edit in patch.edits:
            yield from _trailing(patch.name, f"{patch.name}/patch.toml", edit.text)


def _trailing(patch: str, where: str, text: str) -> Iterator[Fault]:
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line != line.rstrip(" \t")]
    if lines:
        said = (
            f"line {lines[0]} ends in spaces" if patch == "" else "a line of an edit ends in spaces"
        )
        yield Fault(rule="whitespace", patch=patch, where=where, what=said, next="strip it")


def reference_switch(series: Series) -> Iterator[Fault]:
    """A patch with twins of its operators has the switch that turns them on."""
    for patch in series.patches:
        text = "".join((patch.templates / f.template).read_text() for f in patch.files)
        if patch.reference_ops and _REFERENCE_SWITCH not in text:
            yield Fault(
                rule="reference-ops", patch=patch.name, where=f"{patch.name}/patch.toml",
                what=f"none of its templates reads {_REFERENCE_SWITCH}",
                next="put the twins behind that switch",
            )  # fmt: skip


def _templates(layer: Layer) -> list[Path]:
    return sorted(layer.templates.rglob("*.j2")) if layer.templates.is_dir() else []


def _below(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


RULES: tuple[Rule, ...] = (
    version_literals, branches, unused_templates, unused_traits, verbs, edited_twice, whitespace,
    reference_switch,
)  # fmt: skip
