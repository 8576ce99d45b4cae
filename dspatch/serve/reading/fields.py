"""The fields of a configuration class as keywords of the arguments that they become."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dspatch.carry.uses.values import decorator_name
from dspatch.serve.reading.values import (
    ClassRef,
    External,
    Form,
    Value,
    literals,
    told,
)

if TYPE_CHECKING:
    from dspatch.serve.reading.expressions import Expressions

BOOLEAN = External("argparse.BooleanOptionalAction")
_UNWRAPPED = ("Annotated", "SkipValidation", "InstanceOf", "Final")
_DECORATORS = ("dataclass", "config")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a class: its annotation, the class that has it, and the text that stands below it."""

    name: str
    annotation: ast.expr
    owner: ClassRef
    doc: str


class Fields:
    """Fields of classes, as the function `get_kwargs` in `module` turns them into keywords."""

    def __init__(self, expressions: Expressions, module: str) -> None:
        self._expressions = expressions
        helper = expressions.modules.binding(module, "literal_to_kwargs")
        # Where a literal or any text is allowed, later releases only suggest the literal's values.
        self._suggests = isinstance(helper, ast.FunctionDef) and "metavar" in ast.unparse(helper)

    def keywords(self, of: ClassRef) -> Value:
        """The keywords of every field's argument, by the field's name."""
        return {each.name: self._keywords(each) for each in self.all(of)}

    def all(self, of: ClassRef) -> list[Field]:
        """The fields of a class and its bases, the bases' first, as `dataclasses.fields` has them."""
        bases = [each for each in self._expressions.bases(of) if isinstance(each, ClassRef)]
        found: dict[str, Field] = {}
        for base in reversed(bases):
            found |= {each.name: each for each in _own(base)}
        return [each for each in found.values() if not self._is_class_variable(each)]

    def is_dataclass(self, of: Value) -> bool:
        """Whether a class is decorated as one with fields."""
        return isinstance(of, ClassRef) and any(
            decorator_name(each) in _DECORATORS for each in of.node.decorator_list
        )

    def _is_class_variable(self, of: Field) -> bool:
        value = self._annotation(of.annotation, of.owner)
        return isinstance(value, Form) and value.origin in ("ClassVar", "InitVar")

    def _annotation(self, node: ast.expr, owner: ClassRef) -> Value:
        value = self._expressions.in_class(owner, node)
        return self._expressions.in_string(owner, value) if isinstance(value, str) else value

    def _keywords(self, of: Field) -> dict[str, Value]:
        hints = list(self._hints(self._annotation(of.annotation, of.owner), of.owner))
        found: dict[str, Value] = {"help": of.doc}
        if not told(hints):
            # Whether it takes a value hangs on its type.
            return {**found, "unread": True}
        return found | self._by_type(hints)

    def _hints(self, value: Value, owner: ClassRef) -> Iterator[Value]:
        """The types that an annotation allows; `None` for none, `Opaque` for one that is not told."""
        if isinstance(value, str):
            yield from self._hints(self._expressions.in_string(owner, value), owner)
        elif isinstance(value, Form) and value.origin in ("Union", "Optional"):
            for each in value.args:
                yield from self._hints(each, owner)
            if value.origin == "Optional":
                yield None
        elif isinstance(value, Form) and value.origin in _UNWRAPPED:
            yield from self._hints(value.args[0], owner)
        else:
            yield value

    def _by_type(self, hints: list[Value]) -> dict[str, Value]:
        optional = None in hints
        classes = [each for each in hints if self.is_dataclass(each)]
        literal = next((each for each in hints if literals(each) is not None), None)
        collection = next(
            (each for each in hints if _origin(each) in ("tuple", "list", "set")), None
        )
        if classes:
            return {
                "type": External("json"),
                "fields": [each.name for each in self.all(classes[0])],
            }
        if _named(hints, "bool"):
            if _named(hints, "str"):
                return {"nargs": "?"}
            return {"action": BOOLEAN}
        if literal is not None:
            return self._literal(literal, _named(hints, "str"), optional)
        if collection is not None:
            return self._collection(collection, optional=optional)
        for name in ("int", "float"):
            if _named(hints, name):
                return {"type": External(name), "optional": optional}
        return {}

    def _literal(self, literal: Value, suggests: bool, optional: bool) -> dict[str, Value]:
        if suggests and self._suggests:
            return {}
        values = sorted(literals(literal) or (), key=str)
        return {"choices": [*values, *(["None"] if optional else [])]}

    def _collection(self, form: Value, *, optional: bool) -> dict[str, Value]:
        args = form.args if isinstance(form, Form) else ()
        fixed = _origin(form) == "tuple" and args and args[-1] is not Ellipsis
        found: dict[str, Value] = {"nargs": len(args) if fixed else "+"}
        inner = literals(args[0]) if args else None
        return found if inner is None else found | self._literal(args[0], False, optional)


def _own(of: ClassRef) -> Iterator[Field]:
    body = of.node.body
    for number, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            after = body[number + 1] if number + 1 < len(body) else None
            yield Field(name=node.target.id, annotation=node.annotation, owner=of, doc=_text(after))


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _origin(value: Value) -> str:
    if isinstance(value, Form):
        return value.origin
    return value.name.rpartition(".")[2] if isinstance(value, External) else ""


def _named(hints: list[Value], name: str) -> bool:
    return any(isinstance(each, External) and each.name == name for each in hints)
