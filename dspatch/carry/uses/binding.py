"""Whether code written for one signature still means the same with another, and what has changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from dspatch import syntax
from dspatch.carry.uses import forms
from dspatch.carry.uses.signatures import Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of a call: how many by position, which by keyword, and whether unpacked ones come too."""

    positional: int
    keywords: tuple[str, ...] = ()
    unpacked: bool = False
    unpacked_keywords: bool = False

    def __str__(self) -> str:
        words = ["_"] * self.positional + (["*_"] if self.unpacked else [])
        words += [f"{name}=_" for name in self.keywords]
        return f"({', '.join(words + (['**_'] if self.unpacked_keywords else []))})"


def call_of(node: ast.Call, leave_out: frozenset[str] = frozenset()) -> Call:
    """The arguments of a call in code."""
    stars = [isinstance(arg, ast.Starred) for arg in node.args]
    names = [keyword.arg for keyword in node.keywords if keyword.arg not in leave_out]
    return Call(
        positional=stars.count(False),
        keywords=tuple(sorted(name for name in names if name is not None)),
        unpacked=any(stars),
        unpacked_keywords=None in names,
    )


def parse_call(words: str) -> Call:
    """A call from its text."""
    expression = syntax.expression(f"f{words}")
    assert isinstance(expression, ast.Call)
    return call_of(expression)


def call_changes(call: Call, was: Parameters, now: Parameters) -> list[str]:
    """Why a call that was written for `was` does not mean the same with `now`."""
    # What is unpacked at run time came from somewhere that knows the new signature, as a rule from
    # upstream's own call of our override; only what our code spells out can be wrong.
    sure = Call(positional=call.positional, keywords=call.keywords)
    before, after = _bound(sure, was), _bound(sure, now)
    found = [_moved(key, before[key], after[key]) for key in before if before[key] != after[key]]
    given = set(after.values()) | set(before.values())
    unpacks = call.unpacked or call.unpacked_keywords
    return found if unpacks else [*found, *_not_given(given, was, now)]


def _bound(call: Call, parameters: Parameters) -> dict[str, str]:
    """Which parameter each argument reaches; `*` and `**` when none of its own, "" when none at all."""
    places = [p.name for p in parameters if p.kind in ("positional", "either")]
    starred = any(p.kind == "*" for p in parameters)
    doubly = any(p.kind == "**" for p in parameters)
    named = {p.name for p in parameters if p.kind in ("either", "keyword")}
    reached = {
        f"argument {n + 1}": places[n] if n < len(places) else ("*" if starred else "")
        for n in range(call.positional)
    }
    for name in call.keywords:
        reached[f"{name}="] = name if name in named else ("**" if doubly else "")
    return reached


def _moved(argument: str, was: str, now: str) -> str:
    if now in ("", "*", "**"):
        swallowed = f", only by `{now}`" if now else ""
        return f"{argument} (`{was}`) is no longer taken{swallowed}"
    return f"{argument} was `{was}` and is `{now}`"


def _not_given(given: set[str], was: Parameters, now: Parameters) -> Iterator[str]:
    """Parameters that a call leaves out and that do not stay what they were for it."""
    before = {one.name: one for one in was}
    for one in now:
        if one.name in given or one.kind.startswith("*"):
            continue
        old = before.get(one.name)
        if one.is_required:
            yield f"`{one.name}` is required" + (" and new" if old is None else " now")
        elif old is not None and old.default != one.default:
            yield f"the default of `{one.name}` was {old.default} and is {one.default}"


def differences(was: Parameters, now: Parameters) -> Iterator[str]:
    """Every difference but new optional parameters behind all others, for callers nobody knows."""
    before = {one.name: one for one in was}
    after = {one.name: one for one in now}
    for name in before:
        if name not in after:
            yield f"parameter `{name}` is gone"
    for one in now:
        old = before.get(one.name)
        if old is None:
            if one.is_required and not one.kind.startswith("*"):
                yield f"`{one.name}` is required and new"
        elif old.kind != one.kind:
            yield f"`{one.name}` was {_kind(old)} and is {_kind(one)}"
        elif old.default is not None and old.default != one.default:
            yield _default_changed(old, one)
    yield from _reordered(was, now)


def _default_changed(old: Parameter, new: Parameter) -> str:
    if new.default is None:
        return f"`{new.name}` is required now"
    if old.default is None:
        return f"`{new.name}` is optional now, {new.default}"
    return f"the default of `{new.name}` was {old.default} and is {new.default}"


def _kind(one: Parameter) -> str:
    words = {"positional": "positional-only", "either": "positional", "keyword": "keyword-only"}
    return words.get(one.kind, f"`{one.kind}{one.name}`")


def _reordered(was: Parameters, now: Parameters) -> Iterator[str]:
    """Positions: the old parameters must come in their old order, before every new one."""
    old = [p.name for p in was if p.kind in ("positional", "either")]
    new = [p.name for p in now if p.kind in ("positional", "either")]
    kept = [name for name in old if name in new]
    for place, name in enumerate(kept):
        if new[place] != name:
            yield f"`{name}` was parameter {old.index(name) + 1} and is {new.index(name) + 1}"
            return


def override_changes(own: Parameters, was: Parameters, now: Parameters) -> list[str]:
    """Why a method that overrides `was` does not serve the callers of `now`."""
    ours = {one.name: one for one in own if not one.kind.startswith("*")}
    if not ours and len(own) == 2:  # (*args, **kwargs): it takes whatever comes
        return []
    doubly = any(one.kind == "**" for one in own)
    before = {one.name: one for one in was}
    found = [
        change
        for one in now
        if (change := _override_change(ours.get(one.name), before.get(one.name), one, doubly))
    ]
    after = {one.name for one in now}
    for name, one in ours.items():
        if name in before and name not in after and one.is_required:
            found.append(f"callers no longer pass `{name}`, which ours needs")
    starred = any(one.kind == "*" for one in own)
    return found if starred else [*found, *_reordered(was, now)]


def _override_change(
    ours: Parameter | None, old: Parameter | None, new: Parameter, doubly: bool
) -> str:
    """What a change of one parameter means for an override; empty when nothing."""
    if old is None:
        taken = ours is not None or doubly
        return "" if taken else f"callers may pass `{new.name}`, which ours does not take"
    if old.kind != new.kind:
        return f"`{new.name}` was {_kind(old)} and is {_kind(new)}"
    if ours is not None and not _still_takes(ours, old, new):
        return f"`{new.name}` was {old.form} and is {new.form}"
    if ours is None or old.default == new.default:
        return ""
    became_optional = old.default is None
    return "" if became_optional and not ours.is_required else _default_changed(old, new)


def _still_takes(ours: Parameter, old: Parameter, new: Parameter) -> bool:
    """Whether ours takes what callers give now, by what it says itself, or as they gave it before."""
    if ours.form != forms.ANY and forms.fits(new.form, ours.form):
        return True
    return forms.fits(new.form, old.form)
