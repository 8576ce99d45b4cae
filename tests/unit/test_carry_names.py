"""Names followed through lazily parsed modules: the same answers as from modules parsed whole."""

from __future__ import annotations

import ast
import string
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.carry.uses import drift, signatures, uses, usesfile
from dspatch.carry.uses.binding import Call, call_changes, parse_call
from dspatch.carry.uses.bindings import bindings
from dspatch.carry.uses.inserted import inserted_lines
from dspatch.carry.uses.modules import ModuleSource
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.signatures import Parameter
from dspatch.carry.uses.usesfile import Recorded, Use
from dspatch.carry.uses.values import Class, Function, Module
from tests.support import dedent

LIBRARY = Path(sysconfig.get_path("stdlib"))
STANDARD = sorted(LIBRARY.glob("*.py"))[::6]


def source_of(text: str | bytes) -> ModuleSource:
    data = text.encode() if isinstance(text, str) else text
    return ModuleSource(name="m", path="m.py", source=data)


@pytest.mark.parametrize("path", STANDARD, ids=lambda path: path.name)
def test_a_lazily_parsed_module_has_the_names_and_members_of_a_whole_one(path: Path) -> None:
    data = path.read_bytes()
    whole = bindings(ast.parse(data).body)
    lazy = source_of(data)
    assert lazy.names() == sorted(whole)
    for name, binding in whole.items():
        node, found = binding.node, lazy.binding(name)
        assert found is not None
        assert type(found.node) is type(node)
        assert found.node.lineno == node.lineno
        if isinstance(node, ast.ClassDef) and isinstance(found.node, ast.ClassDef):
            assert bindings(found.node.body).keys() == bindings(node.body).keys()
            assert ast.dump(lazy.whole(found.node)) == ast.dump(node)


def test_code_in_strings_is_no_code() -> None:
    text = '"""\nclass Fake:\n    pass\ndef fake(): ...\n"""\n\n\nclass Real:\n    x = 1\n'
    assert source_of(text).names() == ["Real"]
    inner = (
        "class A:\n" + '    TEXT = """\n    def fake(self):\n        pass\n"""\n' + "    y = 1\n"
    )
    padding = "".join(f"    def m{n}(self):\n        return {n}\n" for n in range(300))
    found = source_of(inner + padding).binding("A")
    assert found is not None
    assert isinstance(found.node, ast.ClassDef)
    assert {"TEXT", "y", "m0", "m299"} <= bindings(found.node.body).keys()
    assert "fake" not in bindings(found.node.body)


@pytest.mark.parametrize("text", ["def f(:\n", "x = 1\0\n", "class A:\n\0\n", "\xff = ("])
def test_what_is_no_python_has_no_names(text: str) -> None:
    module = source_of(text.encode("latin-1"))
    assert module.binding("A") is None
    assert module.binding("f") is None


TREE = {
    "p/__init__.py": "from .a import *\nfrom p.b import helper as h\n",
    "p/a.py": "from p.loop import x\nclass A(B): ...\nclass B(A): ...\ndef f(): ...\n",
    "p/b.py": dedent("""
        from __future__ import annotations
        import p.a
        import p.a as other
        try:
            from p.fast import helper
        except ImportError:
            def helper(x): ...
        if True:
            KIND = 1
        else:
            KIND = 2
        class Holder:
            items: list[Holder]
            table: dict[str, "Holder"]
            either: Holder | None = None
            made: type[Holder]
            def __init__(self, given):
                self.given = given
                self.made_here = Holder(given)
                if isinstance(given, Holder):
                    pass
            def next(self) -> Holder: ...
            def forward(self) -> Holder: ...
    """),
    "p/loop.py": "from p.loop import x\n",
}


def names() -> Names:
    return Names(lambda path: TREE[path].encode() if path in TREE else None)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("p.a.f", Function), ("p.f", Function), ("p.h", Function), ("p.b.p.a.f", Function),
        ("p.b.other.f", Function), ("p.a", Module), ("p.b.Holder.items[].next", Function),
        ("p.b.Holder.table[].items[].given", object), ("p.b.Holder.either.next().next", Function),
        ("p.b.Holder.made.next", Function), ("p.b.Holder.made_here.given.next", Function),
        ("p.b.Holder.made_here().next", Function), ("p.a.A", Class), ("p.b.KIND", object),
    ],
)  # fmt: skip
def test_a_path_leads_through_modules_types_and_results(path: str, kind: type) -> None:
    assert isinstance(names().walk(path), kind)


@pytest.mark.parametrize(
    "path", ["p.a.gone", "p.gone", "q", "p.loop.x", "p.a.A.gone", "p.b.KIND.gone", "p.a.f().gone"]
)
def test_a_path_that_leads_nowhere_ends(path: str) -> None:
    assert names().walk(path) is None


NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6).filter(
    lambda name: name.isidentifier() and not __import__("keyword").iskeyword(name)
)
DEFAULTS = st.sampled_from(["None", "1", "'a, b'", "(1, 2)", "{}", "f(x=2)"])


@st.composite
def parameters(draw: st.DrawFn) -> tuple[Parameter, ...]:
    found = draw(st.lists(NAMES, unique=True, max_size=7))
    cuts = sorted(draw(st.lists(st.integers(0, len(found)), min_size=3, max_size=3)))
    optional = draw(st.integers(0, len(found)))
    result = []
    for at, name in enumerate(found):
        kind = "positional" if at < cuts[0] else "either" if at < cuts[1] else "keyword"
        default = draw(DEFAULTS) if at >= optional or kind == "keyword" else None
        result.append(Parameter(name=name, kind=kind, default=default))
    if draw(st.booleans()):
        at = next((n for n, p in enumerate(result) if p.kind == "keyword"), len(result))
        result.insert(at, Parameter(name="all_args", kind="*"))
    if draw(st.booleans()):
        result.append(Parameter(name="all_kwargs", kind="**"))
    return tuple(result)


@given(parameters())
def test_parameters_are_read_from_their_own_text(given_ones: tuple[Parameter, ...]) -> None:
    assert signatures.parse(f"method {signatures.text(given_ones)}") == given_ones


@given(parameters())
def test_a_call_means_the_same_with_the_same_parameters(given_ones: tuple[Parameter, ...]) -> None:
    by_position = sum(p.kind in ("positional", "either") for p in given_ones)
    rest = tuple(sorted(p.name for p in given_ones if p.kind == "keyword"))
    assert call_changes(Call(positional=by_position, keywords=rest), given_ones, given_ones) == []


@given(st.integers(0, 4), st.lists(NAMES, unique=True, max_size=3), st.booleans(), st.booleans())
def test_a_call_is_read_from_its_own_text(
    positional: int, keywords: list[str], unpacked: bool, doubly: bool
) -> None:
    call = Call(
        positional=positional,
        keywords=tuple(sorted(keywords)),
        unpacked=unpacked,
        unpacked_keywords=doubly,
    )
    assert parse_call(str(call)) == call


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    st.lists(
        st.builds(Use, symbol=TEXT, shape=TEXT, ways=st.tuples(TEXT, TEXT), where=st.tuples(TEXT)),
        max_size=3,
    )
)
def test_a_record_reads_back_whatever_it_holds(
    tmp_path_factory: pytest.TempPathFactory, used: list[Use]
) -> None:
    folder = tmp_path_factory.mktemp("record")
    recorded = Recorded(written_for="v1.0", uses=tuple(used))
    (folder / usesfile.NAME).write_text(usesfile.write(recorded), encoding="utf-8", newline="")
    assert usesfile.read(folder) == recorded


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=8)


@given(LINES, LINES)
def test_lines_that_are_not_inserted_are_those_of_before(
    old: list[bytes], new: list[bytes]
) -> None:
    own = inserted_lines(b"".join(old), b"".join(new))
    assert own is not None
    kept = [line for number, line in enumerate(new, 1) if number not in own]
    rest = iter(old)
    assert all(any(line == other for other in rest) for line in kept)
    assert inserted_lines(b"".join(old), b"".join(old)) == frozenset()
    assert inserted_lines(None, b"".join(new)) is None


def test_modules_that_take_all_names_from_each_other_are_asked_once() -> None:
    size = 16
    stars = "".join(f"from q.m{n} import *\n" for n in range(size))
    files = {f"q/m{n}.py": stars for n in range(size)} | {"q/__init__.py": stars}
    files["q/m9.py"] += "def f(): ...\n"
    found = Names(lambda path: files[path].encode() if path in files else None)
    assert isinstance(found.walk("q.m3.f"), Function)
    assert found.walk("q.m3.gone") is None
    assert isinstance(found.walk("q.m4.f"), Function)


def test_names_that_hold_each_other_end() -> None:
    lines = ["x0 = x1"] + [f"x{n} = x{n + 1} if x0 else x{n - 1}" for n in range(1, 60)]
    text = "\n".join([*lines, "x60 = x0", "class A:\n    a: x1\n    b: 'A.b'\n    c = c"])
    found = Names(lambda path: text.encode() if path == "q.py" else None)
    assert found.walk("q.x0.y") is None
    assert found.walk("q.A.a.y") is None
    assert found.walk("q.A.b.y") is None
    assert found.walk("q.A.c.y") is None


@pytest.mark.parametrize("package", ["json", "logging", "concurrent", "importlib"])
def test_what_any_code_uses_is_there_on_the_tree_that_it_was_read_from(package: str) -> None:
    paths = {p.relative_to(LIBRARY).as_posix() for p in (LIBRARY / package).rglob("*.py")}

    def read(path: str) -> bytes | None:
        return (LIBRARY / path).read_bytes() if path in paths else None

    for path in sorted(paths):
        used = uses.of_patch([path], lambda p, own=path: None if p == own else read(p), read)
        assert drift.check(used, Names(read)) == ()
        assert (
            uses.of_patch([path], lambda p, own=path: None if p == own else read(p), read) == used
        )
