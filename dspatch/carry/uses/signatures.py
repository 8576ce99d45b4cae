"""The shape of an upstream symbol: what it is and which parameters it takes, as one line of text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from dspatch import syntax
from dspatch.carry.uses import forms
from dspatch.carry.uses.bindings import bindings
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.values import (
    Class,
    Data,
    Function,
    FunctionNode,
    Instance,
    Items,
    Module,
    Scope,
    Super,
    Value,
    decorator_name,
    is_dataclass,
    last_name,
    scope_of,
)

# Bases that give a class no constructor of its own to ask about.
_PLAIN = frozenset({"object", "ABC", "Generic", "Protocol"})


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter: `default` is the text of its default, `None` when it has none.

    `form` is that of its annotation, as `forms` has it.
    """

    name: str
    kind: str  # "positional", "either", "keyword", "*", "**"
    default: str | None = None
    form: str = forms.ANY

    @property
    def is_required(self) -> bool:
        """Whether a call must give it."""
        return self.default is None and not self.kind.startswith("*")


Parameters = tuple[Parameter, ...]
Told = Callable[[ast.expr | None], str]


def shape(names: Names, value: Value, ways: Collection[str] = ()) -> str:
    """What a value is, in one line that changes when its use would have to.

    A class tells its constructor only to those who call or extend it, and its abstract methods only
    to those who extend it. A method tells what it takes and gives only to those who override it.
    """
    match value:
        case Module():
            return "module"
        case Class():
            return _class_shape(names, value, {way.split(" ")[0] for way in ways})
        case Function():
            overridden = any(way.startswith("override ") for way in ways)
            return override_shape(names, value) if overridden else _function_shape(names, value)
        case Data():
            return value.kind
        case Instance() | Items() | Super():
            return "value"


def override_shape(names: Names, function: Function) -> str:
    """What a method is to those who override it, and what one that overrides it is to its callers."""

    def told(annotation: ast.expr | None) -> str:
        return forms.form(names, annotation, scope_of(function))

    gives = forms.given(names, function)
    words = _function_shape(names, function, told)
    return words if gives == forms.ANY else f"{words} -> {gives}"


def _function_shape(names: Names, function: Function, told: Told | None = None) -> str:
    if function.kind == "property":
        return "property"
    words = "async " if _is_awaited(names, function) else ""
    return f"{words}{function.kind} {text(bound_parameters(function, told))}"


def _is_awaited(names: Names, function: Function) -> bool:
    """Whether a call gives what has to be awaited; a generator is stepped through, whatever makes it."""
    if not isinstance(function.node, ast.AsyncFunctionDef):
        return False
    managed = any(decorator_name(d) in forms.MANAGERS for d in function.node.decorator_list)
    return not managed and not forms.is_generator(names.body(function))


def _class_shape(names: Names, cls: Class, ways: Collection[str]) -> str:
    if names.is_enum(cls):
        return "enum"
    used = {"call", "subclass"} & set(ways)
    parameters = constructor(names, cls) if used else None
    words = "class" if parameters is None else f"class {text(parameters)}"
    abstract = abstract_methods(names, cls) if "subclass" in used else ()
    return f"{words} abstract: {' '.join(abstract)}" if abstract else words


def bound_parameters(function: Function, told: Told | None = None) -> Parameters:
    """The parameters that a caller gives: without `self` or `cls`."""
    parameters = of_arguments(function.node.args, told)
    bound = function.kind in ("method", "classmethod")
    return parameters[1:] if bound and parameters and parameters[0].kind != "*" else parameters


def of_arguments(args: ast.arguments, told: Told | None = None) -> Parameters:
    """The parameters of a `def`; `told` gives the form of an annotation."""

    def parameter(a: ast.arg, kind: str, default: ast.expr | None = None) -> Parameter:
        form = forms.ANY if told is None else told(a.annotation)
        return Parameter(name=a.arg, kind=kind, default=_text_of(default), form=form)

    named = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(named) - len(args.defaults))
    kinds = ["positional"] * len(args.posonlyargs) + ["either"] * len(args.args)
    found = list(map(parameter, named, kinds, [*defaults, *args.defaults]))
    if args.vararg is not None:
        found.append(parameter(args.vararg, "*"))
    found += [
        parameter(a, "keyword", default)
        for a, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg is not None:
        found.append(parameter(args.kwarg, "**"))
    return tuple(found)


def _text_of(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


def text(parameters: Parameters) -> str:
    """Parameters as Python writes them, with the forms of their annotations."""
    words: list[str] = []
    last = ""
    for one in parameters:
        if last == "positional" and one.kind != "positional":
            words.append("/")
        if one.kind == "keyword" and last not in ("keyword", "*"):
            words.append("*")
        words.append(_parameter_text(one))
        last = one.kind
    if last == "positional":
        words.append("/")
    return f"({', '.join(words)})"


def _parameter_text(one: Parameter) -> str:
    stars = one.kind if one.kind.startswith("*") else ""
    told = "" if one.form == forms.ANY else f": {one.form}"
    sign = " = " if told else "="
    return stars + one.name + told + ("" if one.default is None else sign + one.default)


def parse(words: str) -> Parameters | None:
    """The parameters in the text of a shape, `None` when it has none."""
    found = _parsed(words)
    return None if found is None else of_arguments(found.args, _told_in_text)


def gives(words: str) -> str:
    """The form of what the text of a shape says that a call gives."""
    found = _parsed(words)
    if found is None:
        return words.partition(" -> ")[2] or forms.ANY
    return forms.ANY if found.returns is None else ast.unparse(found.returns)


def kind(words: str) -> str:
    """What the text of a shape says that a symbol is."""
    return words.partition(" (")[0].partition(" abstract: ")[0].partition(" -> ")[0]


def _told_in_text(annotation: ast.expr | None) -> str:
    return forms.ANY if annotation is None else ast.unparse(annotation)


def _parsed(words: str) -> ast.FunctionDef | None:
    start = words.find("(")
    if start < 0:
        return None
    module = syntax.parse(f"def f{words[start:].partition(' abstract: ')[0]}: ...")
    assert isinstance(module.body[0], ast.FunctionDef)
    return module.body[0]


# -- constructors ------------------------------------------------------------------------------


def constructor(names: Names, cls: Class) -> Parameters | None:
    """What a class is called with; `None` when that is decided outside of the engine."""
    for owner in names.mro(cls):
        if is_dataclass(owner.node):
            return fields(names, owner)
        for name in ("__init__", "__new__"):
            found = names.member(owner, name)
            if isinstance(found, Function):
                return of_arguments(found.node.args)[1:]
    outside = {
        last_name(base)
        for owner in names.mro(cls)
        for base in owner.node.bases
        if last_name(base) not in _PLAIN and names.evaluate(base, _scope(owner)) is None
    }
    return None if outside else ()


def _scope(cls: Class) -> Scope:
    return Scope(module=cls.module)


def fields(names: Names, cls: Class) -> Parameters:
    """The constructor that a dataclass or NamedTuple is given, inherited fields first."""
    found: dict[str, Parameter] = {}
    for owner in reversed(list(names.mro(cls))):
        if is_dataclass(owner.node) or owner is cls:
            for one in _own_fields(owner.node):
                found[one.name] = one
    given = [one for one in found.values() if one.kind == "either"]
    return (*given, *(one for one in found.values() if one.kind == "keyword"))


def _own_fields(node: ast.ClassDef) -> Iterator[Parameter]:
    keywords = _keyword_only(node)
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation = ast.unparse(statement.annotation)
        if annotation.endswith("KW_ONLY"):
            keywords = True
        elif "ClassVar" not in annotation:
            one = _field(statement.target.id, statement.value)
            if one is not None:
                yield replace(one, kind="keyword") if keywords else one


def _keyword_only(node: ast.ClassDef) -> bool:
    return any(
        keyword.arg == "kw_only"
        and isinstance(keyword.value, ast.Constant)
        and bool(keyword.value.value)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
    )


def _field(name: str, value: ast.expr | None) -> Parameter | None:
    if not (isinstance(value, ast.Call) and decorator_name(value).lower() == "field"):
        return Parameter(name=name, kind="either", default=_text_of(value))
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    if ast.unparse(given["init"]) == "False" if "init" in given else False:
        return None
    default = given.get("default") or (value.args[0] if value.args else None)
    if "default_factory" in given:
        made = f"{ast.unparse(given['default_factory'])}()"
        return Parameter(name=name, kind="either", default=made if _plain(made) else "...")
    required = default is None or ast.unparse(default) == "..."
    return Parameter(name=name, kind="either", default=None if required else _text_of(default))


def _plain(words: str) -> bool:
    """Whether a default can stand in a line of text and be parsed from it again."""
    return "\n" not in words


def abstract_methods(names: Names, cls: Class) -> tuple[str, ...]:
    """The methods that a class or its subclass must still define before it can be instantiated."""
    decided: dict[str, bool] = {}
    for owner in names.mro(cls):
        for name, binding in bindings(owner.node.body).items():
            if isinstance(binding.node, FunctionNode):
                decorators = {decorator_name(d) for d in binding.node.decorator_list}
                decided.setdefault(name, any(d.startswith("abstract") for d in decorators))
            elif binding.annotation is None or binding.value is not None:
                decided.setdefault(name, False)
    return tuple(sorted(name for name, abstract in decided.items() if abstract))
