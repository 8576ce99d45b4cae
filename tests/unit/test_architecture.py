"""The map is true: every module and every command has its place in the documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dspatch import paths
from dspatch.cli import cli
from tests.unit.test_cli import commands

ROOT = paths.PACKAGE.parent
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in paths.PACKAGE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)
MAP = (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_on_the_map(module: str) -> None:
    assert re.search(rf"`{re.escape(module.removeprefix('dspatch/'))}`", MAP), module


def test_the_map_names_no_module_that_is_gone() -> None:
    named = re.findall(r"^\| `([a-z_/]+\.py)`", MAP, re.M)
    assert {f"dspatch/{name}" for name in named} <= set(MODULES)


@pytest.mark.parametrize("name", [name for name, _ in commands(cli)])
def test_every_command_is_in_the_readme(name: str) -> None:
    readme = (ROOT / "README.md").read_text()
    group, _, last = name.rpartition(" ")
    assert name in readme or (group in readme and f"`{last}" in readme), name


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_is(module: str) -> None:
    tree = ast.parse((ROOT / module).read_text())
    public = (ast.FunctionDef, ast.ClassDef)
    bare = [
        node.name
        for node in tree.body
        if isinstance(node, public)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert ast.get_docstring(tree)
    assert not bare


def test_no_path_of_a_machine_and_no_host_is_in_the_tree() -> None:
    words = [f"/{place}/" for place in ("work", "root", "home")]
    for folder in ("dspatch", "patches", "templates", "benchmarks", "ci", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".toml", ".j2", ".md", ".yml"):
                text = path.read_text(encoding="utf-8")
                assert not [word for word in words if word in text], path


def test_readme_links_lead_somewhere() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / document).read_text()):
            assert (ROOT / Path(link)).exists(), f"{document}: {link}"
