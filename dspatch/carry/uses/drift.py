"""Compare the upstream symbols that a patch uses with what they were when it was written."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dspatch.carry.uses import signatures
from dspatch.carry.uses.binding import call_changes, differences, override_changes, parse_call
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

    `changes` says in words what that means for our code, `where` which code that is, and
    `written_for` the pin on which that code was recorded.
    """

    symbol: str
    was: str
    now: str
    changes: tuple[str, ...]
    where: tuple[str, ...]
    written_for: str = ""

    @property
    def words(self) -> str:
        """The drift in a few lines."""
        return (
            f"{self.symbol}: {'; '.join(self.changes)}\n"
            f"    was   {self.was}\n    is    {self.now}\n    used  {', '.join(self.where)}"
        )


def check(uses: Iterable[Use], names: Names) -> tuple[Drift, ...]:
    """Every use whose symbol is gone, or has changed in a way that matters to it.

    names: those of the patched tree. Only the modules that the symbols lead to are parsed.
    """
    found: list[Drift] = []
    for use in uses:
        below_one_gone = any(
            d.now == GONE and use.symbol.startswith((f"{d.symbol}.", f"{d.symbol}(")) for d in found
        )
        if not below_one_gone:
            found.extend(_drift(use, names))
    return tuple(found)


def _drift(use: Use, names: Names) -> Iterator[Drift]:
    value = names.walk(use.symbol) or _elsewhere(use, names)
    if value is None:
        if _can_be_followed(use.symbol, names) and not _unnamed(use.symbol, names):
            yield _found(use, GONE, ["it is no longer there"])
        return
    now = signatures.shape(names, value, use.ways)
    changes = [] if now == use.shape else _changes(use, now)
    changes += [
        c for way in use.ways if way.startswith("subclass") for c in _taken(way, value, names)
    ]
    if changes:
        yield _found(use, now, changes)


def _found(use: Use, now: str, changes: list[str]) -> Drift:
    unique = tuple(dict.fromkeys(changes))
    return Drift(symbol=use.symbol, was=use.shape, now=now, changes=unique, where=use.where)


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
    was_kind, now_kind = _kind(use.shape), _kind(now)
    if was_kind != now_kind and not ({was_kind, now_kind} <= _DATA):
        return [f"it was {_named(was_kind)} and is {_named(now_kind)}"]
    return [change for way in use.ways for change in _of_way(way, use.shape, now)]


def _of_way(way: str, was: str, now: str) -> Iterator[str]:
    word, _, rest = way.partition(" ")
    before, after = signatures.parse(was), signatures.parse(now)
    if word == "write" and _kind(now) == "property":
        yield "our code sets it, and it is a property"
    if word == "subclass":
        yield from _newly_abstract(was, now, rest.split())
    if before is None or after is None:
        return
    if word == "call":
        yield from call_changes(parse_call(rest), before, after)
    elif word == "override":
        own = signatures.parse(rest)
        if own is not None:
            yield from override_changes(own, before, after)
    elif way == "passed on":
        yield from differences(before, after)


def _newly_abstract(was: str, now: str, own: list[str]) -> Iterator[str]:
    for name in sorted(_abstract(now) - _abstract(was) - set(own)):
        yield f"`{name}` is abstract now, and our subclass does not define it"


def _taken(way: str, value: Value, names: Names) -> Iterator[str]:
    """Methods of our subclass that a base now has too, so that ours stand in their place."""
    if not isinstance(value, Class):
        return
    for name in way.split(" ")[1:]:
        if names.of_class(value, name) is not None:
            yield f"it has a `{name}` now, which our subclass's own `{name}` would replace"


def _abstract(shape: str) -> set[str]:
    return set(shape.partition(" abstract: ")[2].split())


def _kind(shape: str) -> str:
    return shape.partition(" (")[0].partition(" abstract: ")[0]


def _named(kind: str) -> str:
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}"
