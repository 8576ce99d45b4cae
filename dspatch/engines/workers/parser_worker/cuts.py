"""Every way in which a text is cut into pieces, between tokens and never inside a character."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SIZES = (1, 2, 3, 5, 8)


@dataclass(frozen=True)
class Piece:
    """Tokens that arrive together, and the text that they complete."""

    ids: tuple[int, ...]
    text: str


def ways(count: int, random_ones: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Where to cut `count` tokens: nowhere, evenly, at every one place, and at random places."""
    yield ()
    if count < 2:
        return
    for size in SIZES:
        yield tuple(range(size, count, size))
    yield from ((place,) for place in range(1, count))
    dice = random.Random(seed)
    for _ in range(random_ones):
        chosen = dice.sample(range(1, count), min(count - 1, dice.randrange(1, 12)))
        yield tuple(sorted(chosen))


def pieces(ids: Sequence[int], spelled: Sequence[bytes], cuts: Sequence[int]) -> list[Piece]:
    """The pieces between the cuts; a character that a cut would tear comes with the later one."""
    found, held = [], b""
    for start, stop in zip((0, *cuts), (*cuts, len(ids)), strict=True):
        held += b"".join(spelled[start:stop])
        text = held.decode(errors="ignore")
        held = held[len(text.encode()) :]
        found.append(Piece(ids=tuple(ids[start:stop]), text=text))
    return found
