"""How bytes are made from other bytes: what is copied, and what is put in between."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

# A range of the old bytes, or text to insert (undecodable bytes as lone surrogates).
Piece = list[int] | str


def pieces(old: bytes, new: bytes) -> list[Piece]:
    """What makes `new` out of `old`, line by line; the applier's `Delta.made` is its inverse."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    head = _same(before, after)
    tail = _same(before[head:][::-1], after[head:][::-1])
    middle = SequenceMatcher(
        None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False
    )
    spans = [(0, head, 0, head)] if head else []
    for tag, i, j, k, end in middle.get_opcodes():
        spans.append((i + head, (j if tag == "equal" else i) + head, k + head, end + head))
    spans.append((len(before) - tail, len(before), len(after) - tail, len(after)))
    return list(_merged(_pieces(spans, before, after)))


def _pieces(
    spans: list[tuple[int, int, int, int]], before: list[bytes], after: list[bytes]
) -> Iterator[Piece]:
    starts = [0]
    for line in before:
        starts.append(starts[-1] + len(line))
    for old_start, old_end, new_start, new_end in spans:
        if old_end > old_start:
            yield [starts[old_start], starts[old_end]]
        elif new_end > new_start:
            text = b"".join(after[new_start:new_end])
            yield text.decode("utf-8", "surrogateescape")


def _merged(found: Iterator[Piece]) -> Iterator[Piece]:
    last: Piece | None = None
    for piece in found:
        if isinstance(piece, list) and isinstance(last, list) and last[1] == piece[0]:
            last = [last[0], piece[1]]
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _same(one: list[bytes], other: list[bytes]) -> int:
    """How many lines two lists begin with in common."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
