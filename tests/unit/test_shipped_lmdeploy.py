"""What the tables say of LMDeploy: wheels only, for GPUs only, and a series that fits."""

from __future__ import annotations

import re

from dspatch import paths, pins, series

SHIPPED = series.load("lmdeploy", paths.data("patches"), paths.data("templates"))


def test_it_is_for_gpus_and_known_from_wheels() -> None:
    facts = pins.engine("lmdeploy")
    assert facts.targets == ("cuda",)
    assert (facts.oldest, facts.newest) == ("0.6.4", None)
    assert {target for patch in SHIPPED.patches for target in patch.targets} == {"cuda"}
    for pin in pins.pinned("lmdeploy"):
        assert {source.kind for source in pin.sources} == {"wheel"}


def test_every_patch_was_written_for_a_pin_and_every_trait_is_asked_for() -> None:
    revs = {pin.rev for pin in pins.pinned("lmdeploy")}
    assert {patch.written_for for patch in SHIPPED.patches} <= revs
    asked = {name.removeprefix("!") for patch in SHIPPED.patches for name in patch.needs}
    given = [spec for patch in SHIPPED.patches for spec in (*patch.edits, *patch.files)]
    asked |= {name.removeprefix("!") for spec in given for name in spec.when}
    templates = paths.data("templates") / "lmdeploy"
    for template in templates.rglob("*.j2"):
        asked |= set(re.findall(r"\btraits\.(\w+)", template.read_text()))
    assert asked == SHIPPED.traits.keys()
