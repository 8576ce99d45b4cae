"""docs/comparison.md: every yes of dspatch names a test that exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/comparison.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def tables(page: str) -> Iterator[list[list[str]]]:
    """The tables of the page: their rows, the head first, as cells."""
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        yield [rows[0], *rows[2:]]


def without_a_test(page: str) -> list[str]:
    """What the page says yes to, without naming a test."""
    features, behind, *others = tables(page)
    proven = {row[0] for row in behind[1:] if NAMED.search(row[-1])}
    bare = [row[0] for row in features[1:] if row[-1] == "yes" and row[0] not in proven]
    for table in others:
        bare += [row[0] for row in table[1:] if row[1] == "yes" and not NAMED.search(row[-1])]
    return bare


def test_no_yes_is_without_a_test() -> None:
    assert without_a_test(PAGE) == []
    features = next(tables(PAGE))
    assert all(row[-1] in ("yes", "no") for row in features[1:])
    assert {len(row) for row in features} == {10}


def test_a_yes_without_a_test_is_caught() -> None:
    first = NAMED.search(PAGE)
    assert first is not None
    assert without_a_test(PAGE.replace("| order | a `series` file a layer", "| other | x", 1)) == ["order"]  # fmt: skip
    wish = next(line for line in PAGE.splitlines() if line.startswith("| all failures at once"))
    assert without_a_test(PAGE.replace(wish, NAMED.sub("", wish))) == ["all failures at once"]


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_every_named_test_exists(file: str, name: str) -> None:
    module = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
