"""Compare the upstream symbols that a patch uses with what they were when it was written."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dspatch.carry.uses import overrides, signatures
from dspatch.carry.uses.binding import call_changes, differences, parse_call
from dspatch.carry.uses.modules import Read
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.usesfile import Use
from dspatch.carry.uses.values import Class, Function, Value

# What is read in the same way, whatever holds it.
_DATA = frozenset(
    {"field", "attribute", "property", "constant", "enum member", "parameter", "local", "value"}
)
GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One upstream symbol that is not what our code was written for.

    `changes` says in words what that means for our code, `where` which code that is and `ways` how it
    uses the symbol; `written_for` is the release on which that was recorded, and `since` the first one
    with what it is now, where that was looked for.
    """

    symbol: str
    was: str
    now: str
    changes: tuple[str, ...]
    where: tuple[str, ...]
    ways: tuple[str, ...] = ()
    written_for: str = ""
    since: str = ""

    @property
    def words(self) -> str:
        """The drift in a few lines."""
        written_for = f" in {self.written_for}" if self.written_for else ""
        since = f" since {self.since}" if self.since else ""
        return (
            f"{self.symbol}: {'; '.join(self.changes)}\n"
            f"    was   {self.was}{written_for}\n    is    {self.now}{since}\n"
            f"    used  {', '.join(self.where)}"
        )

    @property
    def line(self) -> str:
        """The drift in one line."""
        told = f"{self.symbol}: {', '.join(self.changes)}"
        written_for = f" in {self.written_for}" if self.written_for else ""
        if self.now in (GONE, self.was):
            return told
        return f"{told}; was {self.was}{written_for}, is {self.now}"


def check(uses: Iterable[Use], names: Names) -> tuple[Drift, ...]:
    """Every use whose symbol is gone, or has changed in a way that matters to it.

    names: those of the patched tree. Only the modules that the symbols lead to are parsed.
    """
    found: list[Drift] = []
    held = tuple(uses)
    defined = {use.symbol: use.where for use in held if any(map(overrides.replaces, use.ways))}
    for use in held:
        below_one_gone = any(
            d.now == GONE and use.symbol.startswith((f"{d.symbol}.", f"{d.symbol}(")) for d in found
        )
        if not below_one_gone:
            found.extend(_drift(overrides.here(use, names), names, defined))
    return tuple(found)


def since(found: Drift, releases: Iterable[tuple[str, Read]]) -> str | None:
    """The first of some releases, oldest first, on which a symbol is what it is now; `None` when none is.

    releases: each with what reads its files.
    """
    for release, read in releases:
        names = Names(read)
        value = names.walk(found.symbol)
        now = GONE if value is None else signatures.shape(names, value, found.ways)
        if now == found.now:
            return release
    return None


def _drift(use: Use, names: Names, defined: Mapping[str, Collection[str]]) -> Iterator[Drift]:
    if not use.ways:  # on this tree our code does not use it
        return
    value = names.walk(use.symbol) or _elsewhere(use, names)
    if value is None:
        if _can_be_followed(use.symbol, names) and not _unnamed(use.symbol, names):
            yield _found(use, GONE, ["it is no longer there"])
        return
    now = signatures.shape(names, value, use.ways)
    changes = [] if now == use.shape else _changes(use, now)
    if isinstance(value, Class) and any(map(overrides.extends, use.ways)):
        changes += overrides.undefined(use, value, names, defined)
        changes += overrides.taken(use, value, names)
    if changes:
        yield _found(use, now, changes)


def _found(use: Use, now: str, changes: list[str]) -> Drift:
    unique = tuple(dict.fromkeys(changes))
    return Drift(
        symbol=use.symbol, was=use.shape, now=now, changes=unique, where=use.where, ways=use.ways
    )


def _can_be_followed(symbol: str, names: Names) -> bool:
    """Whether what holds the symbol is known, so that its absence is a fact.

    An attribute of something whose type the source no longer says cannot be judged.
    """
    parent = symbol[: max(symbol.rfind("."), symbol.rfind("("), symbol.rfind("["))]
    if symbol.endswith(("()", "[]")):
        return False
    holder = names.walk(parent) if parent else None
    return holder is not None and names.settled(holder) is not None


def _elsewhere(use: Use, names: Names) -> Value | None:
    """What our code imports under the same name on this tree, from where it is kept here."""
    parts = use.symbol.split(".")
    for file in dict.fromkeys(place.partition(":")[0] for place in use.where):
        module = file.removesuffix(".py").replace("/", ".")
        for start in range(1, len(parts)):
            if parts[start].isidentifier() and names.of_module(module, parts[start]) is not None:
                return names.walk(".".join([module, *parts[start:]]))
    return None


def _unnamed(symbol: str, names: Names) -> bool:
    """Whether it is a variable of a function that, as it is patched here, does not name it.

    A patch may be other code there than on the pin where the use was recorded.
    """
    function, _, name = symbol.rpartition(".")
    holder = names.walk(function) if function else None
    if not isinstance(holder, Function):
        return False
    return all(
        node.id != name for node in ast.walk(names.body(holder)) if isinstance(node, ast.Name)
    )


def _changes(use: Use, now: str) -> list[str]:
    """What a change of shape means for the ways in which our code uses the symbol."""
    was_kind, now_kind = signatures.kind(use.shape), signatures.kind(now)
    ways = use.ways
    if was_kind != now_kind and not ({was_kind, now_kind} <= _DATA):
        ways = tuple(way for way in ways if overrides.kind(way) == now_kind)
        if ways != use.ways:
            return [f"it was {_named(was_kind)} and is {_named(now_kind)}"]
    return [change for way in ways for change in _of_way(way, use.shape, now)]


def _of_way(way: str, was: str, now: str) -> Iterator[str]:
    word, _, rest = way.partition(" ")
    before, after = signatures.parse(was), signatures.parse(now)
    if word == "write" and signatures.kind(now) == "property":
        yield "our code sets it, and it is a property"
    if word == "override":
        yield from overrides.changes(rest, was, now)
    elif before is not None and after is not None:
        if word == "call":
            yield from call_changes(parse_call(rest), before, after)
        elif way == "passed on":
            yield from differences(before, after)


def _named(kind: str) -> str:
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}"
