"""The metrics that an engine exports, found in its source, and the samples that each is scraped as."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dspatch import syntax
from dspatch.audit.source import Source
from dspatch.carry.uses.expressions import last_of
from dspatch.serve.engines import Facts, ahead, fitting

Kind = Literal["gauge", "counter", "histogram", "summary", "info", ""]
_KINDS: tuple[Kind, ...] = ("gauge", "counter", "histogram", "summary", "info")
_SUFFIXES: Mapping[Kind, tuple[str, ...]] = {
    "gauge": ("",),
    "counter": ("_total", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "summary": ("", "_sum", "_count", "_created"),
    "info": ("_info",),
    # What kind it is could not be read: any of these may be.
    "": ("", "_total", "_bucket", "_sum", "_count", "_created", "_info"),
}
_HIDDEN = "show_hidden_metrics"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric by its base name (a counter's without `_total`), its kind, and where it is made.

    `hidden`: exported only when hidden metrics are asked for. `deprecated`: its description says so.
    """

    name: str
    kind: Kind
    places: tuple[str, ...]
    hidden: bool = False
    deprecated: bool = False

    @property
    def samples(self) -> tuple[str, ...]:
        """The names that it is scraped under."""
        return tuple(f"{self.name}{suffix}" for suffix in _SUFFIXES[self.kind])


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The metrics that were found, and the files that could not be read; whether any of them is `there`."""

    metrics: Mapping[str, Metric]
    unread: tuple[str, ...] = ()
    there: bool = True

    @cached_property
    def samples(self) -> Mapping[str, Metric]:
        """The metrics by each name that they are scraped under."""
        return {sample: each for each in self.metrics.values() for sample in each.samples}

    @property
    def whole(self) -> bool:
        """Whether every file could be read."""
        return not self.unread


def read(source: Source, facts: Facts) -> Exported:
    """Every metric whose name stands whole in the files that are named for an engine."""
    found: dict[str, Metric] = {}
    unread = []
    trees: dict[str, ast.Module] = {}
    naming = set()
    paths = sorted(fitting(source, facts.metrics))
    ahead(source, paths)
    for path in paths:
        if path in facts.metrics_need and not _needed(source, facts.metrics_need[path]):
            continue
        data = source.read(path) or b""
        naming |= {path} if facts.metric_prefix.encode() in data else set()
        try:
            trees[path] = syntax.parse(data)
        except syntax.UNREADABLE as error:
            unread.append(f"{path}: {error}")
    there = bool(trees or unread)
    if not there:
        unread.append(f"none of {', '.join(facts.metrics[:2])} is there")
    kinds = _named_kinds(trees.values())
    name = re.compile(re.escape(facts.metric_prefix) + r"[a-zA-Z0-9_]+")
    for path in (each for each in trees if each in naming):
        for each in _metrics(trees[path], name, kinds, path):
            found[each.name] = _merged(found.get(each.name), each)
    return Exported(metrics=found, unread=tuple(unread), there=there)


def _needed(source: Source, place: str) -> bool:
    """Whether the class that uses a file is there; where that cannot be told, it may be."""
    path, _, name = place.partition(":")
    data = source.read(path)
    try:
        tree = syntax.parse(data or b"")
    except syntax.UNREADABLE:
        return True
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)


def base(name: str, kind: Kind) -> str:
    """A metric's name without the suffix that the client adds to a counter in any case."""
    if kind == "counter":
        return name.removesuffix("_total")
    return name.removesuffix("_info") if kind == "info" else name


def _merged(first: Metric | None, second: Metric) -> Metric:
    if first is None:
        return second
    return Metric(
        name=first.name,
        kind=first.kind or second.kind,
        places=(*first.places, *second.places),
        # Exported where one place does without asking.
        hidden=first.hidden and second.hidden,
        deprecated=first.deprecated and second.deprecated,
    )


def _metrics(
    tree: ast.Module, name: re.Pattern[str], kinds: Mapping[str, Kind], path: str
) -> Iterator[Metric]:
    for node, around in _walk(tree, ()):
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(node, ast.Constant) or not isinstance(text, str):
            continue
        if name.fullmatch(text) and not _other_use(node, around):
            kind = _kind(node, around, kinds)
            yield Metric(
                name=base(text, kind),
                kind=kind,
                places=(f"{path}:{node.lineno}",),
                hidden=any(_asks_hidden(each) for each in around),
                deprecated=_is_deprecated(around),
            )


def _walk(
    node: ast.AST, around: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Every node with those around it, the outermost first."""
    yield node, around
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, (*around, node))


def _other_use(node: ast.AST, around: tuple[ast.AST, ...]) -> bool:
    """Whether a name only stands there to be compared with or looked up, or as text of its own."""
    outer = around[-1]
    if isinstance(outer, ast.Dict) and node in outer.keys:
        value = outer.values[outer.keys.index(node)]
        return not (isinstance(value, ast.Call) and _kind_of(value.func))
    return isinstance(outer, ast.Compare | ast.Expr | ast.JoinedStr)


def _kind(node: ast.Constant, around: tuple[ast.AST, ...], kinds: Mapping[str, Kind]) -> Kind:
    """By the call that it is given to; else by what the name that holds it is given to; else by the
    one kind that is made in the function around it from names that are not written there."""
    function = next((each for each in reversed(around) if isinstance(each, ast.FunctionDef)), None)
    local = _given_names([function]) if function is not None else {}
    for each in reversed(around):
        if isinstance(each, ast.Call) and (kind := _kind_of(each.func)):
            return kind
        if isinstance(each, ast.Assign):
            names = [getattr(target, "id", "") for target in each.targets]
            held = local if function is not None else kinds
            known = [held[name] for name in names if name in held]
            if known:
                return known[0]
        if each is function:
            made = set(local.values())
            return made.pop() if len(made) == 1 else ""
    return ""


def _given_names(scopes: Iterable[ast.AST]) -> dict[str, Kind]:
    """The names that are given to a metric's class below some nodes, and what each is made into."""
    found: dict[str, Kind] = {}
    for node in (each for scope in scopes for each in ast.walk(scope)):
        if isinstance(node, ast.Call) and (kind := _kind_of(node.func)):
            given = [*node.args[:1], *(w.value for w in node.keywords if w.arg == "name")]
            found |= {last_of(each): kind for each in given if last_of(each)}
    return found


def _named_kinds(trees: Iterable[ast.Module]) -> Mapping[str, Kind]:
    """What each constant that is given to a metric's class, or keys one in a dict, is made into.

    Constants are known across files; names in lower case are somebody's own.
    """
    trees = list(trees)
    found = _given_names(trees)
    for node in (each for tree in trees for each in ast.walk(tree)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                kind = _kind_of(value.func) if isinstance(value, ast.Call) else ""
                if key is not None and kind and last_of(key):
                    found[last_of(key)] = kind
    return {name: kind for name, kind in found.items() if name.isupper()}


def _kind_of(function: ast.expr) -> Kind:
    name = last_of(function).lower()
    return next((kind for kind in _KINDS if kind in name and "register" not in name), "")


def _asks_hidden(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _HIDDEN in ast.dump(node.test)


def _is_deprecated(around: tuple[ast.AST, ...]) -> bool:
    call = next((each for each in reversed(around) if isinstance(each, ast.Call)), None)
    words = call.keywords if call is not None else []
    said = (word.value for word in words if word.arg == "documentation")
    return any("deprecated" in ast.unparse(each).lower() for each in said)
