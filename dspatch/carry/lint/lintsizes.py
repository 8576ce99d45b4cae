"""How many lines the templates have, and how many the new files that they became on the pins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspatch.carry.lint.tried import Tried
from dspatch.series import Series


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Lines of all templates; lines and number of the files that patches added, over all trees."""

    templates: int
    rendered: int
    files: int
    trees: int


def sizes(series: Series, tried: Sequence[Tried]) -> Sizes:
    """What would have to be kept by hand, a file a release, beside what is kept."""
    kept = [path for layer in series.layers for path in layer.templates.rglob("*.j2")]
    made = [
        file
        for one in tried
        for applied in one.tree.patches
        for file in applied.statistics["files"]
        if file["new"] and file["path"].endswith(".py")
    ]
    return Sizes(
        templates=sum(len(path.read_text(encoding="utf-8").splitlines()) for path in kept),
        rendered=sum(file["added"] for file in made),
        files=len(made),
        trees=len(tried),
    )
