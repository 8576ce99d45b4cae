"""Cards by name, from `data/cards.toml`: what kernels must be compiled for, and how much memory there is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from operator import ge, gt, le, lt

from dspatch import tomlfile
from dspatch.errors import PatchFormatError, UnknownVariantError
from dspatch.paths import PACKAGE

TABLE = PACKAGE / "audit" / "data" / "cards.toml"
CONDITION = re.compile(r"(<=|>=|<|>)?\s*(sm\d+|gfx[0-9a-f]+)")
_COMPARED = {"<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card: `capability` (`sm90`, `gfx942`; empty for the CPU), memory in GB where it is known."""

    name: str
    capability: str
    memory: int | None = None

    @property
    def target(self) -> str:
        """What an engine must be built for to run on it."""
        if not self.capability:
            return "cpu"
        return "cuda" if self.capability.startswith("sm") else "rocm"

    def meets(self, condition: str) -> bool:
        """Whether it is what a finding names: `sm80`, or `<sm89`, which AMD's cards never are."""
        found = CONDITION.fullmatch(condition)
        if found is None:
            return False
        comparison, wanted = found.groups()
        if comparison is None:
            return self.capability == wanted
        ours, theirs = _number(self.capability), _number(wanted)
        return ours is not None and theirs is not None and _COMPARED[comparison](ours, theirs)


def card(name: str) -> Card:
    """The card of a name, or of a capability (`sm90`). Raises `UnknownVariantError` with the nearest."""
    plain = re.sub(r"^(nvidia|amd|geforce)[ -]+", "", name.lower()).replace(" ", "-")
    known = cards()
    if plain in known:
        return known[plain]
    if CONDITION.fullmatch(plain):
        return Card(name=plain, capability=plain)
    near = get_close_matches(plain, known, n=3, cutoff=0.4)
    raise UnknownVariantError(
        f"dspatch knows no card named {name!r}.",
        why=f"nearest: {', '.join(near)}" if near else f"it knows {', '.join(known)}",
        next="name it by its compute capability, for example --gpu sm90",
    )


@cache
def cards() -> Mapping[str, Card]:
    """All cards by name."""
    source = tomlfile.load(TABLE, PatchFormatError)
    return {
        name: Card(name=name, capability=row.get("capability", ""), memory=row.get("memory"))
        for name, row in source.data.items()
    }


def _number(capability: str) -> int | None:
    return int(capability[2:]) if re.fullmatch(r"sm\d+", capability) else None
