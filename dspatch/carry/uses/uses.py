"""Which upstream symbols a patch's own code uses, and in which way, read from the patched Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dspatch import syntax
from dspatch.carry.uses import signatures
from dspatch.carry.uses.inserted import inserted_lines
from dspatch.carry.uses.modules import Read
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.ours import Ours
from dspatch.carry.uses.usereader import Found, Reader
from dspatch.carry.uses.usesfile import Use
from dspatch.carry.uses.values import Module


@dataclass(frozen=True, kw_only=True)
class Used:
    """The uses of a patch, sorted by symbol.

    `missing` is what it imports from the engine and the patched tree does not have: file and name.
    """

    uses: tuple[Use, ...]
    missing: tuple[tuple[str, str], ...]


def of_patch(paths: Iterable[str], before: Read, after: Read) -> tuple[Use, ...]:
    """The uses of a patch, as in `Used`.

    paths: the files that the patch adds or changes. before, after: the tree without and with it.
    A symbol is upstream's when the tree without the patch has it.
    """
    return _uses(_read(paths, before, after))


def used(paths: Iterable[str], before: Read, after: Read) -> Used:
    """The uses of a patch and its imports that lead nowhere, from one reading; as `of_patch` takes them."""
    found = _read(paths, before, after)
    return Used(uses=_uses(found), missing=_missing(found))


def _uses(found: Found) -> tuple[Use, ...]:
    uses = (_use(symbol, found) for symbol in sorted(found.ways))
    return tuple(use for use in uses if use is not None)


def _use(symbol: str, found: Found) -> Use | None:
    ways = found.ways[symbol]
    value = found.ours.after.walk(symbol) or found.ours.before.walk(symbol)
    if value is None or (isinstance(value, Module) and ways == {"read"}):
        return None
    return Use(
        symbol=symbol,
        shape=signatures.shape(found.ours.after, value, ways),
        ways=tuple(sorted(ways)),
        where=tuple(sorted(found.where[symbol])),
    )


def _missing(found: Found) -> tuple[tuple[str, str], ...]:
    names = found.ours.after
    return tuple(
        sorted(
            (path, name)
            for path, name in found.imports
            if names.top(name.partition(".")[0]) is not None and names.walk(name) is None
        )
    )


def _read(paths: Iterable[str], before: Read, after: Read) -> Found:
    ours = Ours(Names(before), Names(after))
    found = Found(ours)
    for path in sorted(paths):
        source = after(path) if path.endswith(".py") else None
        if source is None:
            continue
        try:
            module = syntax.parse(source)
        except (SyntaxError, ValueError):
            continue
        Reader(found, path, inserted_lines(before(path), source)).visit(module)
    return found
