"""Answers in an output format: read back to the engine's own, and held against what the format says."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspatch.outputformat import CHUNK, OutputFormat, Rules

# The objects that requests of each name are answered with, in one piece.
KINDS = {"chat": "chat.completion", "completion": "text_completion"}

# What a check cannot do without; a format that drops it leaves the check blind.
_NEEDS = {
    "tokens.exact": ("usage",),
    "usage.adds": ("usage",),
    "usage.streamed": ("usage",),
    "logprobs.sound": ("choices.logprobs",),
    "logprobs.streamed": ("choices.logprobs",),
    "reasoning.split": tuple(
        f"choices.{said}.{name}"
        for said in ("message", "delta")
        for name in ("reasoning", "reasoning_content")
    ),
}


def rules_of(format: OutputFormat, value: Mapping[str, Any], *, streamed: bool) -> Rules:
    """The rules for an object that a server sent."""
    kind = str(value.get("object")).removesuffix(CHUNK)
    return format.rules(kind + CHUNK if streamed else kind)


def blind(check: str, format: OutputFormat) -> str:
    """The field that a check needs and the format drops; empty where there is none."""
    dropped = {path for rules in format.objects.values() for path in rules.drop}
    return next((path for path in _NEEDS.get(check, ()) if path in dropped), "")


def undone(value: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """The object as the engine made it, but for what was dropped."""
    found: dict[str, Any] = copy.deepcopy(dict(value))
    # The outer ones first: paths name outer fields as the engine does.
    for path in sorted(rules.rename, key=lambda path: path.count(".")):
        for parent, name in places(found, path):
            if rules.rename[path] in parent:
                parent[name] = parent.pop(rules.rename[path])
    for path in (*rules.copy, *rules.add):
        for parent, name in places(found, path):
            parent.pop(name, None)
    return found


def places(value: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects that have, or could have, the field of a path, and its name in them."""
    first, _, rest = path.partition(".")
    if isinstance(value, list):
        for item in value:
            yield from places(item, path)
    elif isinstance(value, dict):
        if rest:
            yield from places(value.get(first), rest)
        else:
            yield value, first


def fields(value: Mapping[str, Any], rules: Rules, seen: set[str]) -> Iterator[str]:
    """What is wrong with the fields of an object, as it was sent; adds those that rules made to `seen`."""
    made = {place for place, _ in rules.made()}
    for path in (*rules.drop, *rules.rename):
        if rules.placed(path) not in made and _there(value, rules.placed(path)):
            yield f"`{path}` is there" + (" under its old name" if path in rules.rename else "")
    for path, name in rules.rename.items():
        if _there(value, rules.placed(path, name)):
            seen.add(path)
    for path, constant in rules.add.items():
        for parent, name in places(value, rules.placed(path)):
            seen.add(path)
            if name not in parent or parent[name] != constant:
                yield f"`{path}` is {parent.get(name)!r}, not {constant!r}"
    for path, origin in rules.copy.items():
        yield from _copied(value, rules, path, origin, seen)


def _there(value: Any, path: str) -> bool:
    return any(name in parent for parent, name in places(value, path))


def _copied(
    value: Mapping[str, Any], rules: Rules, path: str, origin: str, seen: set[str]
) -> Iterator[str]:
    source = rules.renamed(origin)
    for target, expected in _pairs(value, rules.placed(path).split("."), source.split(".")):
        seen |= {path} if target else set()
        if source and target != expected:
            yield f"`{path}` is {_told(target)}, and `{origin}` is {_told(expected)}"


def _pairs(
    value: Any, path: Sequence[str], origin: Sequence[str]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """The values of two fields, each of none or one, in every object that has both in it."""
    if isinstance(value, list):
        for item in value:
            yield from _pairs(item, path, origin)
    elif isinstance(value, dict):
        if path[0] == origin[0] and len(path) > 1 and len(origin) > 1:
            yield from _pairs(value.get(path[0]), path[1:], origin[1:])
            return
        targets = list(places(value, ".".join(path)))
        found = [
            [parent[name] for parent, name in rows if name in parent]
            for rows in (targets, places(value, ".".join(origin)))
        ]
        if targets:
            yield found[0], found[1]


def _told(values: Sequence[Any]) -> str:
    return repr(values[0]) if values else "not there"


def shape(objects: Sequence[Mapping[str, Any]], rules: Rules) -> Iterator[str]:
    """What is wrong with the chunks of a stream, as they were sent, by the rules for their shape."""
    if not rules.empty_choices and any(not one["choices"] for one in objects):
        yield "a chunk has no choices"
    counted = [bool(one.get("usage")) for one in objects]
    if rules.usage == "every" and not all(counted):
        yield f"{counted.count(False)} of {len(counted)} chunks have no usage"
    if rules.usage == "last" and (not counted[-1:] or not counted[-1] or any(counted[:-1])):
        yield f"usage is on chunks {[n for n, has in enumerate(counted) if has]} of {len(counted)}"
    choices = [choice for one in objects for choice in one["choices"]]
    if rules.finish_reason == "own" and any(map(_speaking_end, choices)):
        yield "a finish_reason comes with words"
    if rules.role:
        yield from _roles(choices, rules.role)


def _speaking_end(choice: Mapping[str, Any]) -> bool:
    if choice.get("finish_reason") is None:
        return False
    said = {**(choice.get("delta") or {}), "text": choice.get("text")}
    return any(value for name, value in said.items() if name != "role")


def _roles(choices: Sequence[Mapping[str, Any]], wanted: str) -> Iterator[str]:
    begun: set[Any] = set()
    wrong = 0
    for choice in choices:
        due = wanted == "every" or choice["index"] not in begun
        wrong += ("role" in (choice.get("delta") or {})) != due
        begun.add(choice["index"])
    if wrong:
        yield f"{wrong} of {len(choices)} deltas have a role too few or too many"
