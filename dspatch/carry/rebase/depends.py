"""Which patches of a series rest on one of them: by the text around their hunks, by what they import or name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dspatch import astfind

Kind = Literal["text", "import", "symbol", "indirect"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one patch of a series did: the files that it changed, before and after."""

    name: str
    before: Mapping[str, bytes | None]
    after: Mapping[str, bytes | None]


@dataclass(frozen=True, kw_only=True)
class Dependent:
    """A patch that rests on another, and how that is known."""

    name: str
    on: str
    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


# Names of patches that cannot be applied when some are left out, each with the reason.
Without = Callable[[Collection[str]], Mapping[str, str]]


def dependents(name: str, steps: Sequence[Step], without: Without) -> tuple[Dependent, ...]:
    """The later patches that rest on one, directly or through others.

    `without` applies the series on the revision it stood on before, leaving out the names given.
    """
    found = {each.name: each for each in _by_meaning(name, steps)}
    for other, why in without({name, *found}).items():
        found.setdefault(other, Dependent(name=other, on=name, kind="text", detail=_first(why)))
    for other in tuple(found):
        for each in _by_meaning(other, steps):
            if each.name not in found and each.name != name:
                found[each.name] = Dependent(
                    name=each.name,
                    on=other,
                    kind="indirect",
                    detail=f"rests on {other}: {each.detail}",
                )
    order = [step.name for step in steps]
    return tuple(sorted(found.values(), key=lambda each: order.index(each.name)))


def _by_meaning(name: str, steps: Sequence[Step]) -> list[Dependent]:
    """Patches whose code imports what a patch adds, or names what it defines."""
    at = next((n for n, step in enumerate(steps) if step.name == name), None)
    if at is None:
        return []
    made = _Made(steps[at])
    found = []
    for step in steps[at + 1 :]:
        use = made.used_by(step)
        if use is not None:
            found.append(Dependent(name=step.name, on=name, kind=use[0], detail=use[1]))
    return found


class _Made:
    """What a patch adds: modules, and names in them."""

    def __init__(self, step: Step) -> None:
        self.modules = {
            _module(path)
            for path, data in step.after.items()
            if data is not None and step.before.get(path) is None and path.endswith(".py")
        }
        self.names = _added(step)

    def used_by(self, step: Step) -> tuple[Kind, str] | None:
        """The first use of it in what another patch adds."""
        own = _added(step).keys()
        for path, data in step.after.items():
            if not path.endswith(".py"):
                continue
            imports, names = _uses(data)
            old_imports, old_names = _uses(step.before.get(path))
            for module in sorted({module for module, _ in imports - old_imports}):
                if module in self.modules:
                    return "import", f"{path} imports {module}, which it adds"
            known = {name for _, name in imports - old_imports} | (names - old_names)
            for name in sorted((known & self.names.keys()) - own):
                return "symbol", f"{path} uses `{name}`, which it defines in {self.names[name]}"
        return None


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _added(step: Step) -> dict[str, str]:
    """The names that a patch defines, each with its file: what code outside can tell it by.

    Those inside a class of its own are known by the class, so they are left out.
    """
    found: dict[str, str] = {}
    for path, data in step.after.items():
        if path.endswith(".py"):
            old, new = _defined(step.before.get(path)), _defined(data)
            for name in new - old:
                if name.rpartition(".")[0] in {"", *old}:
                    found[name.rpartition(".")[2]] = path
    return {name: path for name, path in found.items() if len(name) > 2 and name[:2] != "__"}


@lru_cache(maxsize=512)
def _defined(source: bytes | None) -> frozenset[str]:
    """Every dotted name that a module defines, and the attributes that it sets on other objects."""
    tree = _parsed(source)
    if tree is None:
        return frozenset()
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
    return frozenset({*astfind.qualified_names(tree), *attributes})


@lru_cache(maxsize=512)
def _uses(source: bytes | None) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """The imports of a module, as (module, name), and every name and attribute that it reads."""
    tree = _parsed(source)
    if tree is None:
        return frozenset(), frozenset()
    imports: set[tuple[str, str]] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imports |= {(node.module or "", alias.name) for alias in node.names}
            imports |= {(f"{node.module}.{alias.name}", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            imports |= {(alias.name, alias.name) for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # getattr(layer, "keep_weight", False), "pkg.module.Class"
            names.add(node.value.rpartition(".")[2])
    return frozenset(imports), frozenset(names)


def _parsed(source: bytes | None) -> ast.Module | None:
    try:
        return astfind.parsed(source) if source is not None else None
    except (SyntaxError, ValueError):
        return None


def _first(text: str) -> str:
    return text.splitlines()[0] if text else "it does not apply without it"
