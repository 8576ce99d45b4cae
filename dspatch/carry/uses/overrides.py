"""Methods of our classes in place of upstream's: whether they still serve their callers, and whether one is lacking."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from dspatch.carry.uses import forms, signatures
from dspatch.carry.uses.binding import override_changes
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.usesfile import Use
from dspatch.carry.uses.values import Class, Function


def replaces(way: str) -> bool:
    """Whether in this way our class defines what a base has."""
    return way == "assign" or way.startswith("override ")


def extends(way: str) -> bool:
    """Whether in this way a class is a base of ours."""
    return way.partition(" ")[0] == "subclass"


def kind(way: str) -> str | None:
    """What sort of method ours is, where it is one that overrides."""
    word, _, own = way.partition(" ")
    return signatures.kind(own) if word == "override" else None


def here(use: Use, names: Names) -> Use:
    """A use with the overrides as our classes have them on this tree: a patch may be other code there.

    A class that is not found, as one that is another file's there, is taken to be as it was recorded.
    """
    recorded = [way for way in use.ways if kind(way) is not None]
    classes = _classes(use, names) if recorded else {}
    if not classes:
        return use
    name = use.symbol.rpartition(".")[2]
    own = [names.member(cls, name) for cls in classes.values()]
    ways = {
        f"override {signatures.override_shape(names, method)}"
        for method in own
        if isinstance(method, Function)
    }
    kept = {way for way in use.ways if way not in recorded}
    return replace(use, ways=tuple(sorted(kept | ways)))


def _classes(use: Use, names: Names) -> dict[str, Class]:
    """Our classes that use a symbol, as this tree has them, by the places where that was recorded."""
    found = {}
    for place in use.where:
        path, _, inside = place.partition(": ")
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        value = names.walk(f"{module}.{inside}") if inside else None
        if isinstance(value, Class):
            found[place] = value
    return found


def changes(own: str, was: str, now: str) -> Iterator[str]:
    """Why a method, by its shape, does not serve the callers of `now`, though it did those of `was`."""
    ours, before, after = (signatures.parse(shape) for shape in (own, was, now))
    if ours is not None and before is not None and after is not None:
        yield from override_changes(ours, before, after)
    given, wanted = signatures.gives(was), signatures.gives(now)
    if not forms.fits(given, wanted) and not _surely_fits(signatures.gives(own), wanted):
        yield f"it gave {given} and gives {wanted}"


def _surely_fits(own: str, wanted: str) -> bool:
    return own != forms.ANY and forms.fits(own, wanted)


def undefined(
    use: Use, base: Class, names: Names, defined: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Abstract methods of a base that our class does not define, though it did, or they were none.

    defined: where our classes stood in for which symbols when the use was recorded.
    """
    was_abstract = set(use.shape.partition(" abstract: ")[2].split())
    ours = {
        place: (cls.node.name, signatures.abstract_methods(names, cls))
        for place, cls in _classes(use, names).items()
        if any(one.node is base.node for one in names.mro(cls))
    }
    own = {n for way in use.ways if extends(way) for n in way.split(" ")[1:]}
    for method in signatures.abstract_methods(names, base):
        places = defined.get(f"{use.symbol}.{method}", ())
        for place, (name, lacking) in ours.items():
            if method in lacking and (place in places or method not in was_abstract):
                yield f"`{method}` is abstract, and our `{name}` does not define it"
        if not ours and not places and method not in own | was_abstract:
            yield f"`{method}` is abstract now, and our subclass does not define it"


def taken(use: Use, base: Class, names: Names) -> Iterator[str]:
    """Methods of our subclass that a base now has too, so that ours stand in their place."""
    ours = _classes(use, names)
    for name in sorted({n for way in use.ways if extends(way) for n in way.split(" ")[1:]}):
        still = not ours or any(names.member(cls, name) is not None for cls in ours.values())
        if still and names.of_class(base, name) is not None:
            yield f"it has a `{name}` now, which our subclass's own `{name}` would replace"
