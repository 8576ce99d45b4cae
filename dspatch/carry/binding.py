"""Whether code written for one signature still means the same with another, and what has changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from dspatch.carry.signatures import Parameter, Parameters


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
    expression = ast.parse(f"f{words}", mode="eval").body
    assert isinstance(expression, ast.Call)
    return call_of(expression)


def call_changes(call: Call, was: Parameters, now: Parameters) -> list[str]:
    """Why a call that was written for `was` does not mean the same with `now`."""
    if call.unpacked or call.unpacked_keywords:
        return list(_of_unknown_arguments(call, was, now))
    before, after = _bound(call, was), _bound(call, now)
    found = [_moved(key, before[key], after[key]) for key in before if before[key] != after[key]]
    given = set(after.values()) | set(before.values())
    return [*found, *_not_given(given, was, now)]


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


def _of_unknown_arguments(call: Call, was: Parameters, now: Parameters) -> Iterator[str]:
    """What may matter to a call of which some arguments are unpacked at run time."""
    sure = Call(positional=call.positional, keywords=call.keywords)
    before, after = _bound(sure, was), _bound(sure, now)
    for key in before:
        if before[key] != after[key]:
            yield _moved(key, before[key], after[key])
    yield from differences(was, now, given=frozenset(before.values()))


def differences(
    was: Parameters, now: Parameters, given: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Every difference but new optional parameters behind all others, for callers nobody knows."""
    before = {one.name: one for one in was}
    after = {one.name: one for one in now}
    for name in before:
        if name not in after and name not in given:
            yield f"parameter `{name}` is gone"
    for one in now:
        old = before.get(one.name)
        if old is None:
            if one.is_required and not one.kind.startswith("*"):
                yield f"`{one.name}` is required and new"
        elif old.kind != one.kind:
            yield f"`{one.name}` was {_kind(old)} and is {_kind(one)}"
        elif old.default != one.default and one.name not in given:
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
    if any(p.kind == "*" for p in own) and any(p.kind == "**" for p in own) and len(own) == 2:
        return []
    taken = {p.name for p in own} if not any(p.kind == "**" for p in own) else None
    before = {one.name: one for one in was}
    found = []
    for one in now:
        old = before.get(one.name)
        if old is None and taken is not None and one.name not in taken:
            found.append(f"callers may pass `{one.name}`, which ours does not take")
        elif (
            old is not None
            and old.default != one.default
            and one.name in (taken or {p.name for p in own})
        ):
            found.append(_default_changed(old, one))
        elif old is not None and old.kind != one.kind:
            found.append(f"`{one.name}` was {_kind(old)} and is {_kind(one)}")
    after = {one.name for one in now}
    for one in was:
        ours = next((p for p in own if p.name == one.name), None)
        if one.name not in after and ours is not None and ours.is_required:
            found.append(f"callers no longer pass `{one.name}`, which ours needs")
    return [*found, *(_reordered(was, now) if not _starred(own) else [])]


def _starred(own: Parameters) -> bool:
    return any(p.kind == "*" for p in own)
