"""LMDeploy's series keeps the rules of shipped patches, and its table says what is known of it."""

from __future__ import annotations

from dspatch import paths, pins, series
from tests.unit.test_shipped_series import version_literals

SHIPPED = series.load("lmdeploy", paths.data("patches"), paths.data("templates"))


def test_patches_ask_traits_not_versions() -> None:
    assert not version_literals((SHIPPED.layers[0].folder / "traits.toml").read_text())
    for patch in SHIPPED.patches:
        assert patch.needs
        assert not any(version_literals(f"{edit.find} {edit.text}") for edit in patch.edits)
        assert {name.removeprefix("!") for name in patch.needs} <= SHIPPED.traits.keys()


def test_every_trait_is_used() -> None:
    asked = {name.removeprefix("!") for patch in SHIPPED.patches for name in patch.needs}
    assert asked == SHIPPED.traits.keys()


def test_it_is_for_gpus_and_known_from_wheels() -> None:
    facts = pins.engine("lmdeploy")
    assert facts.targets == ("cuda",)
    assert (facts.oldest, facts.newest) == ("0.6.4", None)
    assert {target for patch in SHIPPED.patches for target in patch.targets} == {"cuda"}
