"""Semantic edits on Python sources: located by `ast`, spliced as bytes, so untouched lines keep every byte."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from typing import Literal

from dspatch import astfind
from dspatch.errors import EditError

Verb = Literal["replace", "insert-before", "insert-after"]
VERBS: tuple[Verb, ...] = ("replace", "insert-before", "insert-after")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One change of one place: in `file`, within `symbol`, at the code `find` matches.

    `text` is re-indented to the place; blank lines around it are kept, but for one line end.
    """

    file: str
    verb: Verb
    find: str
    text: str
    symbol: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Span:
    """A half-open byte range, and the indentation of what replaces it."""

    start: int
    end: int
    indent: bytes
    whole_lines: bool


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where an edit goes: the bytes that it takes the place of, its own, and how they are indented."""

    start: int
    end: int
    text: bytes
    indent: bytes
    whole_lines: bool


def placed(source: bytes, edit: Edit) -> Placed:
    """The place of an edit in a source. Raises `EditError` when it is not found, or more than once."""
    scope = _scope(_parse(source, edit), edit)
    span = _span(source, scope, edit)
    return Placed(
        start=span.start,
        end=span.end,
        text=_text(source, edit, span),
        indent=span.indent,
        whole_lines=span.whole_lines,
    )


def apply_edit(source: bytes, edit: Edit) -> bytes:
    """The source with one edit made.

    Raises `EditError` when the place is not found or found more than once, and when the result is
    not Python.
    """
    place = placed(source, edit)
    result = source[: place.start] + place.text + source[place.end :]
    try:
        astfind.parsed(result)
    except SyntaxError as error:
        raise EditError(
            f"{edit.file}: the edit `{edit.verb}` leaves a file that is not Python.",
            why=f"line {error.lineno}: {error.msg}",
            next="mend the `text` of the edit",
        ) from None
    return result


def _parse(source: bytes, edit: Edit) -> ast.Module:
    try:
        return astfind.parsed(source)
    except (SyntaxError, ValueError) as error:
        raise EditError(f"{edit.file} cannot be parsed as Python.", why=str(error)) from None


def _scope(module: ast.Module, edit: Edit) -> ast.AST:
    if edit.symbol is None:
        return module
    scope = astfind.symbol(module, edit.symbol)
    if scope is None:
        nearest = astfind.nearest_symbol(module, edit.symbol)
        raise EditError(
            f"{edit.file}: there is no `{edit.symbol}`.",
            why=f"nearest found: `{nearest}`" if nearest else "nothing in the file looks like it",
            next="read the file of this revision and give the edit its new place",
        )
    return scope


def _span(source: bytes, scope: ast.AST, edit: Edit) -> _Span:
    wanted = astfind.pattern(edit.find)
    matches = astfind.find(scope, wanted)
    if len(matches) != 1:
        raise _not_one(scope, edit, wanted, matches)
    match = matches[0]
    statements = match.is_statement or edit.verb != "replace"
    nodes = match.nodes if match.is_statement else _enclosing(scope, match, edit)
    if not statements:
        return _expression_span(source, match.nodes[0])
    whole = _statement_span(source, nodes, edit)
    if edit.verb == "insert-before":
        return _Span(start=whole.start, end=whole.start, indent=whole.indent, whole_lines=True)
    if edit.verb == "insert-after":
        return _Span(start=whole.end, end=whole.end, indent=whole.indent, whole_lines=True)
    return whole


def _not_one(
    scope: ast.AST, edit: Edit, wanted: astfind.Pattern, matches: list[astfind.Match]
) -> EditError:
    where = f"{edit.file}: in `{edit.symbol}`" if edit.symbol else edit.file
    sought = ast.unparse(wanted.statements[0]).splitlines()[0]
    if matches:
        lines = ", ".join(str(m.nodes[0].lineno) for m in matches)
        return EditError(
            f"{where}: `{sought}` stands in {len(matches)} places.",
            why=f"lines {lines}; an edit has one place",
            next="name a narrower `symbol` or a longer `find`",
        )
    nearest = astfind.nearest_code(scope, wanted)
    return EditError(
        f"{where}: `{sought}` is not there.",
        why=f"nearest found: line {nearest[0]}, `{nearest[1]}`"
        if nearest
        else "nothing looks like it",
        next="read the file of this revision and give the edit its new place",
    )


def _enclosing(scope: ast.AST, match: astfind.Match, edit: Edit) -> tuple[ast.stmt, ...]:
    """The innermost statement around an expression."""
    target = match.nodes[0]
    inner: ast.stmt | None = None
    for node in ast.walk(scope):
        if isinstance(node, ast.stmt) and any(child is target for child in ast.walk(node)):
            inner = node
    if inner is None:
        raise EditError(f"{edit.file}: the expression found stands in no statement.")
    return (inner,)


def _expression_span(source: bytes, node: ast.stmt | ast.expr) -> _Span:
    starts = _line_starts(source)
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    line = source[starts[node.lineno - 1] :]
    return _Span(start=start, end=end, indent=_leading(line), whole_lines=False)


def _statement_span(source: bytes, nodes: tuple[ast.stmt | ast.expr, ...], edit: Edit) -> _Span:
    starts = _line_starts(source)
    first, last = nodes[0], nodes[-1]
    decorators = getattr(first, "decorator_list", [])
    line = min([first.lineno, *(d.lineno for d in decorators)]) - 1
    end_line = last.end_lineno or last.lineno
    before = source[starts[first.lineno - 1] :][: first.col_offset]
    after = source[starts[end_line - 1] + (last.end_col_offset or 0) : starts[end_line]].strip()
    if before.strip() or (after and not after.startswith(b"#")):
        raise EditError(
            f"{edit.file}, line {first.lineno}: the statement shares its line with another.",
            why="an edit replaces whole lines of statements",
            next="let `find` match the compound statement around it",
        )
    return _Span(start=starts[line], end=starts[end_line], indent=before, whole_lines=True)


def _text(source: bytes, edit: Edit, span: _Span) -> bytes:
    if not edit.text.strip():
        return b""
    newline = b"\r\n" if b"\r\n" in source else b"\n"
    lines = textwrap.dedent(edit.text).removesuffix("\n").encode().split(b"\n")
    if not span.whole_lines:
        return (newline + span.indent).join(lines)
    body = b"".join((span.indent + line if line.strip() else b"") + newline for line in lines)
    at_open_end = span.start == len(source) and source and not source.endswith(b"\n")
    return newline + body if at_open_end else body


def _line_starts(source: bytes) -> list[int]:
    """Byte offsets of every line's start, and of the end of the source."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _leading(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]
