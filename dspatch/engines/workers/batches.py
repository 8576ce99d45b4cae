"""Which rows of forward passes belong to which text, when several requests share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

Pass = tuple[Sequence[int], Sequence[int]]  # token ids and positions, (rows,) each


class StrayRowError(Exception):
    """A pass has a row that is no text's."""


def rows_of(
    passes: Iterable[Pass], texts: Mapping[str, Sequence[int]], *, ahead: bool = False
) -> dict[str, list[int]]:
    """The rows of each text in its order, numbered through all passes.

    Every text is read once, from its first token on, by pieces of any length. A row that is nobody's
    raises `StrayRowError`; `ahead` of the texts' ends an engine may compute what nobody asked for, which is left out.
    """
    rows: dict[str, list[int]] = {name: [] for name in texts}
    done = 0
    for ids, positions in passes:
        for start, owner, length in _pieces(ids, positions, texts, rows, ahead):
            rows[owner] += range(done + start, done + start + length)
        done += len(ids)
    return rows


def _pieces(
    ids: Sequence[int],
    positions: Sequence[int],
    texts: Mapping[str, Sequence[int]],
    rows: Mapping[str, Sequence[int]],
    ahead: bool,
) -> Iterator[tuple[int, str, int]]:
    """Where each piece of a pass begins, whose it is, and how long: the longest that any text goes on with."""
    start = 0
    while start < len(ids):
        first = positions[start]
        one = ids[start : start + _run(positions[start:])]
        waiting = [name for name in texts if len(rows[name]) == first]
        fits = {name: _common(texts[name][first:], one) for name in waiting}
        owner = max(fits, key=lambda name: fits[name], default="")
        length = fits.get(owner, 0)
        if length:
            yield start, owner, length
        elif not ahead:
            raise StrayRowError(f"nobody's token at position {first} of a pass")
        start += length or 1


def _run(positions: Sequence[int]) -> int:
    """How many of the positions follow each other."""
    return _common(positions, range(positions[0], positions[0] + len(positions)))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many numbers two sequences begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
