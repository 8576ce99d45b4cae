"""The rules that every shipped patch, trait and template keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dspatch import paths, series

VERSION = re.compile(r"\bv?\d+\.\d+\.\d+(\.post\d+)?\b")
SHIPPED = series.load("vllm", paths.data("patches"), paths.data("templates"))
TEMPLATES = sorted(SHIPPED.layers[0].templates.rglob("*.j2"))
NAMES = [path.relative_to(SHIPPED.layers[0].templates).as_posix() for path in TEMPLATES]


def version_literals(text: str) -> list[str]:
    return [match.group() for match in VERSION.finditer(text)]


def test_a_version_literal_is_seen() -> None:
    assert version_literals('if version >= "0.27.1": ...') == ["0.27.1"]
    assert not version_literals("SPDX-License-Identifier: Apache-2.0, 1e-5, 0.25")


@pytest.mark.parametrize("template", TEMPLATES, ids=NAMES)
def test_templates_ask_traits_not_versions(template: Path) -> None:
    text = template.read_text()
    assert not version_literals(text)
    branches = re.findall(r"<%-?\s*(?:if|elif)\b[^%]*\btraits\.", text)
    assert len(branches) <= 3, "split the template"


def test_traits_ask_the_source_not_versions() -> None:
    assert not version_literals((SHIPPED.layers[0].folder / "traits.toml").read_text())


@pytest.mark.parametrize("patch", SHIPPED.patches, ids=lambda patch: patch.name)
def test_what_a_patch_does_depends_on_traits_only(patch: series.Patch) -> None:
    assert patch.needs, "a patch says by traits which checkouts need it"
    for edit in patch.edits:
        assert not version_literals(f"{edit.find} {edit.text} {edit.symbol}")
    assert not version_literals(" ".join(patch.needs))


def test_every_trait_and_every_template_is_used() -> None:
    asked = {name.removeprefix("!") for patch in SHIPPED.patches for name in patch.needs}
    for patch in SHIPPED.patches:
        asked |= {n.removeprefix("!") for part in (*patch.files, *patch.edits) for n in part.when}
    text = "".join(path.read_text() for path in TEMPLATES)
    text += "".join(edit.text for patch in SHIPPED.patches for edit in patch.edits)
    text += (SHIPPED.layers[0].folder / "traits.toml").read_text()
    for name in SHIPPED.traits:
        used = name in asked or f"traits.{name}" in text or f'trait = "{name}"' in text
        assert used, name
    named = {file.template for patch in SHIPPED.patches for file in patch.files}
    included = set(re.findall(r"(?:import|include|from)\s+\"([^\"]+)\"", text))
    assert set(NAMES) <= named | included


def test_reference_twins_are_behind_one_switch() -> None:
    for patch in SHIPPED.patches:
        if patch.reference_ops:
            text = "".join(
                (SHIPPED.layers[0].templates / f.template).read_text() for f in patch.files
            )
            assert "DSPATCH_REFERENCE_OPS" in text, patch.name
