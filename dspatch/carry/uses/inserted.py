"""Which lines of a patched file are the patch's own."""

from __future__ import annotations

from difflib import SequenceMatcher


def inserted_lines(before: bytes | None, after: bytes) -> frozenset[int] | None:
    """The numbers, from 1, of the lines that a patch put into a file; `None` means all of them."""
    if before is None:
        return None
    old, new = before.splitlines(), after.splitlines()
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    matcher = SequenceMatcher(
        None, old[start : len(old) - end], new[start : len(new) - end], autojunk=False
    )
    return frozenset(
        line + start + 1
        for tag, _, _, first, last in matcher.get_opcodes()
        if tag in ("insert", "replace")
        for line in range(first, last)
    )


def _common(one: list[bytes], other: list[bytes]) -> int:
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return number
    return min(len(one), len(other))
