"""Whether a semantic edit is already made in a source, so that making it again would be wrong."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from dspatch import astfind, syntax
from dspatch.edits import Edit

# Statements that give a name its meaning in a scope, wherever they stand in it.
_DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNING = (ast.Assign, ast.AnnAssign)


def made_at(source: bytes | None, edit: Edit) -> int | None:
    """The line where an edit's text already stands in its symbol, `None` when the edit is to be made.

    A replacement: its text is there, and what it replaces is not, or only inside the text. An
    insertion: its text stands at its place; where that is gone, anywhere in the symbol; and text
    that only binds names, anywhere in the symbol's own body. An edit that only takes code away is never seen as made.
    """
    if source is None or not _holds_every_word(source, edit.text):
        return None
    text = _statements(edit.text)
    scope = _scope(source, edit)
    if not text or scope is None:
        return None
    stands = list(_runs(scope, text))
    if edit.verb == "replace":
        return _replaced(scope, edit, stands) or _expression_replaced(scope, edit, text)
    return _inserted(scope, edit, text, stands)


def _holds_every_word(source: bytes, text: str) -> bool:
    """Whether it is worth parsing: code cannot be there while one of its names is not."""
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    return all(word.encode() in source for word in re.findall(r"\b[^\W\d]\w*", code))


def _scope(source: bytes, edit: Edit) -> ast.AST | None:
    try:
        module = astfind.parsed(source)
    except (SyntaxError, ValueError):
        return None
    return module if edit.symbol is None else astfind.symbol(module, edit.symbol)


def _statements(text: str) -> list[ast.stmt]:
    try:
        return syntax.parse(textwrap.dedent(text).strip("\n")).body
    except SyntaxError:
        return []


def _replaced(scope: ast.AST, edit: Edit, stands: Sequence[Sequence[ast.stmt]]) -> int | None:
    if len(stands) != 1:
        return None
    inside = {id(node) for statement in stands[0] for node in ast.walk(statement)}
    matches = astfind.find(scope, astfind.pattern(edit.find))
    left = [match for match in matches if any(id(node) not in inside for node in match.nodes)]
    return None if left else stands[0][0].lineno


def _expression_replaced(scope: ast.AST, edit: Edit, text: Sequence[ast.stmt]) -> int | None:
    """The same for one expression that stands inside a statement."""
    value = text[0].value if len(text) == 1 and isinstance(text[0], ast.Expr) else None
    if value is None or isinstance(value, ast.Constant | ast.Name):
        return None
    wanted = _meaning(value)
    found = [
        node for node in ast.walk(scope) if isinstance(node, ast.expr) and _meaning(node) == wanted
    ]
    if len(found) != 1:
        return None
    inside = {id(node) for node in ast.walk(found[0])}
    matches = astfind.find(scope, astfind.pattern(edit.find))
    if any(id(node) not in inside for match in matches for node in match.nodes):
        return None
    return found[0].lineno


def _inserted(
    scope: ast.AST, edit: Edit, text: Sequence[ast.stmt], stands: Sequence[Sequence[ast.stmt]]
) -> int | None:
    if not stands:
        return None
    line = stands[0][0].lineno
    if _binds(scope, text):
        own = {id(statement) for statement in getattr(scope, "body", [])}
        return next((run[0].lineno for run in stands if id(run[0]) in own), None)
    matches = astfind.find(scope, astfind.pattern(edit.find))
    if not matches:
        return line if len(stands) == 1 else None
    return next((run[0].lineno for run in stands if _beside(scope, edit, matches, run)), None)


def _binds(scope: ast.AST, text: Sequence[ast.stmt]) -> bool:
    """Whether statements only bind names, so that their place in a scope's body does not matter."""
    in_order = isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)
    kinds = _DEFINING if in_order else (*_DEFINING, *_ASSIGNING)
    return all(isinstance(statement, kinds) for statement in text)


def _beside(
    scope: ast.AST, edit: Edit, matches: Sequence[astfind.Match], run: Sequence[ast.stmt]
) -> bool:
    """Whether statements stand right before or behind the one place that an insertion has."""
    if len(matches) != 1:
        return False
    anchor = {id(node) for node in matches[0].nodes}
    after = edit.verb == "insert-after"
    edge = run[0] if after else run[-1]
    for block in _blocks(scope):
        for one, two in itertools.pairwise(block):
            near, far = (one, two) if after else (two, one)
            if far is edge and anchor & {id(node) for node in ast.walk(near)}:
                return True
    return False


def _runs(scope: ast.AST, text: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Every place where statements stand one after the other, word for word but for their writing."""
    wanted = [_meaning(statement) for statement in text]
    for block in _blocks(scope):
        said = [_meaning(statement) for statement in block]
        for at in range(len(block) - len(wanted) + 1):
            if said[at : at + len(wanted)] == wanted:
                yield block[at : at + len(wanted)]


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _meaning(node: ast.AST) -> str:
    return ast.dump(node)
