"""Paths that begin with `@/`: below the package that a trait names on each checkout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch import onto, render, series
from dspatch.carry.uses import guard
from dspatch.carry.uses.usesfile import Recorded
from dspatch.errors import PatchFormatError
from dspatch.traits import Traits
from dspatch.treefiles import Files

TRAITS = """
[ops]
what = "the package of operators"
[[ops.first_of]]
value = "mini.v1.ops"
file = "mini/v1/ops/__init__.py"
[[ops.first_of]]
value = "mini.ops"
file = "mini/ops/__init__.py"

[plain]
what = "a trait without a value"
file = "mini/ops/__init__.py"
"""
PATCH = """
subject = "Adds an operator"
reason = "none is there"
upstream = "never: only a test"
drop-when = "upstream has it"
targets = ["cpu"]
{at}

[[file]]
path = "@/own.py"
template = "own.py.j2"

[[file]]
path = "@/own/own.cpp"
template = "own.py.j2"

[[edit]]
file = "@/there.py"
verb = "insert-after"
find = "import torch"
text = "from ${{ traits.ops }} import own"

[[extension]]
path = "@/own/own.so"
compiler = "11"
units = [{{ source = "@/own/own.cpp" }}]
"""


class Tree:
    """The files of a checkout."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read(self, path: str) -> bytes | None:
        text = self._files.get(path)
        return None if text is None else text.encode()

    def mode(self, path: str) -> str:
        return "100644"

    def paths(self) -> list[str]:
        return list(self._files)

    def known_blob(self, path: str) -> str | None:
        return None


def load(root: Path, at: str = 'at = "ops"') -> series.Series:
    folder, templates = root / "patches/mini/own", root / "templates/mini"
    folder.mkdir(parents=True)
    templates.mkdir(parents=True)
    (folder.parent / "series").write_text("own\n")
    (folder.parent / "traits.toml").write_text(TRAITS)
    (folder / "patch.toml").write_text(PATCH.format(at=at))
    (templates / "own.py.j2").write_text("own = 1\n")
    return series.load("mini", root / "patches", root / "templates")


@pytest.mark.parametrize("ops", ["mini/v1/ops", "mini/ops"])
def test_a_patch_is_put_where_the_checkout_has_the_package(tmp_path: Path, ops: str) -> None:
    read = load(tmp_path)
    tree = Tree({f"{ops}/__init__.py": "", f"{ops}/there.py": "import torch\n"})
    files = Files(source=tree)
    facts = Traits(read.traits, files.read)
    (planned,) = read.plan(facts, "cpu", [frozenset()])
    context = render.Context(traits=facts, variants=())
    changes = onto.rendered(planned.patch, files, context)
    assert set(changes) == {f"{ops}/own.py", f"{ops}/own/own.cpp", f"{ops}/there.py"}
    package = ops.replace("/", ".")
    assert f"from {package} import own".encode() in (changes[f"{ops}/there.py"].data or b"")
    (extension,) = planned.patch.extensions
    assert (extension.path, extension.units[0].source) == (
        f"{ops}/own/own.so",
        f"{ops}/own/own.cpp",
    )
    assert planned.patch.package == package
    assert onto.rendered(read.patch("own"), files, context) == changes


def test_a_checkout_without_the_package_is_told(tmp_path: Path) -> None:
    read = load(tmp_path)
    with pytest.raises(PatchFormatError, match="`at` is ops, which has no value") as error:
        read.plan(Traits(read.traits, Tree({}).read), "cpu", [frozenset()])
    assert "`needs`" in error.value.next


@pytest.mark.parametrize(
    ("at", "told"),
    [
        ("", "no `at` names the trait"),
        ('at = "gone"', "`gone` is no trait with a value"),
        ('at = "plain"', "`plain` is no trait with a value"),
        ("at = 3", "at"),
    ],
)
def test_what_names_no_place_is_refused(tmp_path: Path, at: str, told: str) -> None:
    with pytest.raises(PatchFormatError, match=told):
        load(tmp_path, at)


def test_uses_are_held_against_the_record_of_the_same_place(tmp_path: Path) -> None:
    read = load(tmp_path)
    patch = read.patch("own")
    assert patch.asks(read.traits) == ("ops",)
    newer, older = (
        Recorded(written_for=rev, uses=(), answers=(f"ops={package}",))
        for rev, package in (("v2.0", "mini.v1.ops"), ("v1.0", "mini.ops"))
    )
    both = replace(newer, others=(older,))
    for file, held in (("mini/v1/ops/__init__.py", both), ("mini/ops/__init__.py", older)):
        assert guard.nearest(patch, both, Traits(read.traits, Tree({file: ""}).read)) == [held]
    assert guard.answer("plain", Traits(read.traits, Tree({}).read)) == "!plain"
    assert guard.answer("ops", Traits(read.traits, Tree({}).read)) == "!ops"
