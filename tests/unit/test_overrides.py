"""Methods of ours that override upstream's, on mini engines whose bases changed: each change is seen, and no other."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dspatch.carry.uses import drift, forms, signatures, uses
from dspatch.carry.uses.drift import Drift
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.usesfile import Use
from tests.support import dedent
from tests.unit.drift_upstream import Tree

BASE = "mini/base.py"
OURS = "mini/ours.py"
UPSTREAM = {
    "mini/__init__.py": "",
    BASE: dedent('''
        from abc import ABC, abstractmethod
        from contextlib import contextmanager
        from typing import Any, Iterator, Optional

        import torch


        class Metadata: ...


        class Special(Metadata): ...


        class Root(ABC):
            @abstractmethod
            def build(self, lengths: list[int]) -> Metadata: ...

            @property
            def width(self) -> int:
                return 1


        class Layer(Root):
            def __init__(self, heads: int) -> None:
                self.heads = heads

            def forward(self, q: torch.Tensor, cache, scale: float = 1.0) -> torch.Tensor:
                return q

            def split(self, tokens):
                return tokens, 0

            def untold(self, tokens):
                return self.split(tokens)

            def steps(self, n):
                return [n]

            @staticmethod
            def name() -> str:
                return "LAYER"

            def warm(self):
                """Subclasses may."""
    '''),
}
OUR_SOURCE = dedent("""
    from mini.base import Layer, Metadata, Special


    class OurLayer(Layer):
        def __init__(self, heads):
            super().__init__(heads)

        def build(self, lengths: list[int]) -> Special:
            return Special()

        @property
        def width(self) -> int:
            return 2

        def forward(self, q, cache, scale=1.0):
            return super().forward(q, cache, scale)

        def split(self, tokens):
            return tokens, 1

        def untold(self, tokens):
            return tokens

        def steps(self, n):
            return [n, n]

        @staticmethod
        def name() -> str:
            return "OURS"

        def warm(self):
            self.warmed = True


    class OurWider(OurLayer):
        def forward(self, q, cache, scale=1.0):
            return q
""")
BEFORE = Tree(UPSTREAM)
AFTER = Tree({**UPSTREAM, OURS: OUR_SOURCE})


def recorded(ours: str = OUR_SOURCE) -> tuple[Use, ...]:
    return uses.of_patch([OURS], BEFORE.read, Tree({**UPSTREAM, OURS: ours}).read)


USES = recorded()


def checked(tree: Tree, held: Sequence[Use] = USES) -> dict[str, Drift]:
    return {found.symbol: found for found in drift.check(held, Names(tree.read))}


def based(old: str, new: str) -> Tree:
    """The patched tree of a release whose base differs in one place."""
    return AFTER.changed(BASE, old, new)


def test_an_override_records_what_both_sides_take_and_give() -> None:
    found = {use.symbol: (use.shape, *use.ways) for use in USES}
    assert found["mini.base.Layer.forward"] == (
        "method (q: Tensor, cache, scale: float = 1.0) -> Tensor",
        "call (_, _, _)",
        "override method (q, cache, scale=1.0)",
    )
    assert found["mini.base.Layer.build"] == (
        "method (lengths: list[int]) -> _",
        "override method (lengths: list[int]) -> _",
    )
    assert found["mini.base.Layer.split"][0] == "method (tokens) -> tuple[Any, Any]"
    assert found["mini.base.Layer.untold"][0] == "method (tokens)"
    assert found["mini.base.Layer.width"] == ("property -> int", "override property -> int")
    assert found["mini.base.Layer.warm"][0] == "method ()"


def test_an_override_behind_a_base_of_ours_is_held_against_upstream() -> None:
    (use,) = (use for use in USES if use.symbol == "mini.base.Layer.forward")
    assert f"{OURS}: OurWider" in use.where


def test_the_release_that_it_was_written_for_is_sound() -> None:
    assert checked(AFTER) == {}


FORWARD = "def forward(self, q: torch.Tensor, cache, scale: float = 1.0) -> torch.Tensor:"
BUILD = "def build(self, lengths: list[int]) -> Metadata: ..."
WARM = '    def warm(self):\n        """Subclasses may."""\n'
# The base before, the base after, the symbol, and what has to be said of it.
PLANTED = {
    "a required parameter more": (
        "def split(self, tokens):", "def split(self, tokens, heads):",
        "mini.base.Layer.split", "callers may pass `heads`, which ours does not take",
    ),
    "a parameter with a default more": (
        "def split(self, tokens):", "def split(self, tokens, heads=16):",
        "mini.base.Layer.split", "callers may pass `heads`, which ours does not take",
    ),
    "a keyword more": (
        "def split(self, tokens):", "def split(self, tokens, *, heads=16):",
        "mini.base.Layer.split", "callers may pass `heads`, which ours does not take",
    ),
    "a parameter less": (
        "def split(self, tokens):", "def split(self):",
        "mini.base.Layer.split", "callers no longer pass `tokens`, which ours needs",
    ),
    "a parameter may be a tuple now": (
        "q: torch.Tensor, cache", "q: torch.Tensor | tuple[torch.Tensor, torch.Tensor], cache",
        "mini.base.Layer.forward", "`q` was Tensor and is Tensor | tuple[Tensor, Tensor]",
    ),
    "a parameter may be None now": (
        "q: torch.Tensor, cache", "q: Optional[torch.Tensor], cache",
        "mini.base.Layer.forward", "`q` was Tensor and is Tensor | None",
    ),
    "a tuple by annotation": (
        "-> torch.Tensor:", "-> tuple[torch.Tensor, torch.Tensor | None]:",
        "mini.base.Layer.forward", "it gave Tensor and gives tuple[Tensor, Tensor | None]",
    ),
    "a longer tuple by its body": (
        "return tokens, 0", "return tokens, 0, 0",
        "mini.base.Layer.split", "it gave tuple[Any, Any] and gives tuple[Any, Any, Any]",
    ),
    "nothing by its body": (
        "return tokens, 0", "self.done = tokens",
        "mini.base.Layer.split", "it gave tuple[Any, Any] and gives None",
    ),
    "a tuple where it was one object": (
        BUILD, BUILD.replace("Metadata", "tuple[Metadata, int]"),
        "mini.base.Layer.build", "it gave _ and gives tuple[_, int]",
    ),
    "a property of another type": (
        "def width(self) -> int:", "def width(self) -> tuple[int, int]:",
        "mini.base.Layer.width", "it gave int and gives tuple[int, int]",
    ),
    "a coroutine": (
        "def forward(", "async def forward(",
        "mini.base.Layer.forward", "it was a method and is an async method",
    ),
    "a generator": (
        "return [n]", "yield n",
        "mini.base.Layer.steps", "it gave list and gives Iterator",
    ),
    "a property": (
        "    def warm(self):", "    @property\n    def warm(self):",
        "mini.base.Layer.warm", "it was a method and is a property",
    ),
    "a property no longer": (
        "    @property\n    def width", "    def width",
        "mini.base.Layer.width", "it was a property and is a method",
    ),
    "a static method no longer": (
        "    @staticmethod\n    def name()", "    def name(self)",
        "mini.base.Layer.name", "it was a staticmethod and is a method",
    ),
    "a class method": (
        "    @staticmethod\n    def name()", "    @classmethod\n    def name(cls)",
        "mini.base.Layer.name", "it was a staticmethod and is a classmethod",
    ),
    "a context": (
        "    def split(self", "    @contextmanager\n    def split(self",
        "mini.base.Layer.split", "it gave tuple[Any, Any] and gives AbstractContextManager",
    ),
    "an abstract method more": (
        WARM, f"{WARM}\n    @abstractmethod\n    def cool(self): ...\n",
        "mini.base.Layer", "`cool` is abstract, and our `OurLayer` does not define it",
    ),
    "an abstract method more in the base of the base": (
        "    @property\n    def width", "    @abstractmethod\n    def cool(self): ...\n\n    @property\n    def width",
        "mini.base.Layer", "`cool` is abstract, and our `OurLayer` does not define it",
    ),
    "the hook is gone": (
        WARM, "",
        "mini.base.Layer.warm", "it is no longer there",
    ),
    "the base is gone": (
        "class Layer(Root):", "class Layers(Root):",
        "mini.base.Layer", "it is no longer there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_of_the_base_is_seen(name: str) -> None:
    old, new, symbol, said = PLANTED[name]
    found = checked(based(old, new))
    assert symbol in found, sorted(found)
    assert said in found[symbol].changes
    shapes = f"; was {found[symbol].was}, is {found[symbol].now}"
    assert found[symbol].line.endswith("" if found[symbol].now == drift.GONE else shapes)


HARMLESS = {
    "it says the same in a string": ("-> torch.Tensor:", "-> 'torch.Tensor':"),
    "it may give nothing, of which ours makes no use": ("-> torch.Tensor:", "-> torch.Tensor | None:"),
    "it no longer says what it gives": ("-> torch.Tensor:", "-> Any:"),
    "it says less of what it takes": ("q: torch.Tensor, cache", "q, cache"),
    "it takes less": ("lengths: list[int]", "lengths: 'List[int]'"),
    "another class of the engine": (BUILD, BUILD.replace("Metadata", "Special")),
    "it is abstract now, and ours defines it": ("    def split(", "    @abstractmethod\n    def split("),
    "it says now what it gave": ("def split(self, tokens):", "def split(self, tokens) -> tuple[int, int]:"),
    "its body gives the same in another way": ("return tokens, 0", "return (self.heads, tokens)"),
    "it was moved up to a base": (WARM, ""),
    "another method changed": ("    def warm(", "    def unused(self, a, b): ...\n\n    def warm("),
    "a cached property": ("    @property\n    def width", "    @cached_property\n    def width"),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_what_an_override_need_not_know_is_not_told(name: str) -> None:
    tree = based(*HARMLESS[name])
    if name == "it was moved up to a base":
        tree = tree.changed(
            BASE, "    @property\n    def width", f"{WARM}\n    @property\n    def width"
        )
    assert checked(tree) == {}


def test_a_base_that_moved_is_held_where_our_code_on_this_tree_takes_it_from() -> None:
    moved = {
        **UPSTREAM,
        BASE: "",
        "mini/layers.py": UPSTREAM[BASE],
        OURS: OUR_SOURCE.replace("mini.base", "mini.layers"),
    }
    assert checked(Tree(moved)) == {}
    more = Tree(moved).changed(
        "mini/layers.py", "def split(self, tokens):", "def split(self, tokens, heads):"
    )
    assert list(checked(more)) == ["mini.base.Layer.split"]
    stayed = Tree({**moved, OURS: OUR_SOURCE})
    assert checked(stayed)["mini.base.Layer"].now == drift.GONE


def test_the_release_that_changed_a_base_is_found_among_those_between() -> None:
    more = based("def split(self, tokens):", "def split(self, tokens, heads=16):")
    (found,) = checked(more).values()
    between = [("1.1", AFTER.read), ("1.2", Tree({}).read), ("1.3", more.read), ("1.4", more.read)]
    assert drift.since(found, between) == "1.3"
    assert drift.since(found, between[:1]) is None
    told = replace(found, written_for="1.0", since="1.3").words.splitlines()[1:3]
    assert told == [
        "    was   method (tokens) -> tuple[Any, Any] in 1.0",
        "    is    method (tokens, heads=16) -> tuple[Any, Any] since 1.3",
    ]
    (gone,) = (d for d in checked(based(WARM, "")).values())
    assert drift.since(gone, [("1.1", AFTER.read), ("1.2", based(WARM, "").read)]) == "1.2"


def test_ours_counts_as_it_is_on_this_tree() -> None:
    wide = OUR_SOURCE.replace("def split(self, tokens):", "def split(self, tokens, heads=16):")
    more = based("def split(self, tokens):", "def split(self, tokens, heads=16):")
    assert checked(Tree({**more.files, OURS: wide})) == {}
    assert list(checked(more)) == ["mini.base.Layer.split"]


def test_what_ours_gives_on_this_tree_counts() -> None:
    three = based("return tokens, 0", "return tokens, 0, 0")
    ours = OUR_SOURCE.replace("return tokens, 1", "return tokens, 1, 1")
    assert checked(Tree({**three.files, OURS: ours})) == {}


def test_an_override_that_this_tree_does_without_is_no_drift() -> None:
    gone = based(WARM, "")
    without = OUR_SOURCE.replace("    def warm(self):\n        self.warmed = True\n", "")
    assert without != OUR_SOURCE
    assert checked(Tree({**gone.files, OURS: without})) == {}


def test_an_abstract_method_that_ours_lacks_on_this_tree_is_told_though_no_base_changed() -> None:
    lines = "    def build(self, lengths: list[int]) -> Special:\n        return Special()\n"
    assert lines in OUR_SOURCE
    found = checked(Tree({**UPSTREAM, OURS: OUR_SOURCE.replace(lines, "")}))
    assert found["mini.base.Layer"].changes == (
        "`build` is abstract, and our `OurLayer` does not define it",
    )


def test_a_class_of_ours_that_is_abstract_by_design_stays_so() -> None:
    ours = dedent("""
        from mini.base import Root


        class Half(Root):
            @property
            def width(self) -> int:
                return 3


        class Whole(Half):
            def build(self, lengths):
                return None
    """)
    tree = Tree({**UPSTREAM, OURS: ours})
    assert checked(tree, recorded(ours)) == {}


def test_an_abstract_method_that_a_mixin_defines_is_not_lacking() -> None:
    ours = dedent("""
        from mini.base import Root


        class Mixin:
            def cool(self): ...


        class Mixed(Mixin, Root):
            build = staticmethod(len)
    """)
    tree = Tree({**UPSTREAM, OURS: ours}).changed(
        BASE,
        "    @property\n    def width",
        "    @abstractmethod\n    def cool(self): ...\n\n    @property\n    def width",
    )
    assert checked(tree, recorded(ours)) == {}


def test_a_class_that_is_called_as_its_base_overrides_what_was_imported() -> None:
    ours = dedent("""
        from mini.base import Layer


        class Layer(Layer):
            def build(self, lengths):
                return self.heads

            def split(self, tokens):
                return super().split(tokens)
    """)
    held = recorded(ours)
    found = {use.symbol: use.ways for use in held}
    assert found["mini.base.Layer.split"] == ("call (_)", "override method (tokens)")
    assert found["mini.base.Layer.heads"] == ("read",)
    assert checked(Tree({**UPSTREAM, OURS: ours}), held) == {}
    more = based("def split(self, tokens):", "def split(self, tokens, heads):")
    found_more = checked(Tree({**more.files, OURS: ours}), held)
    assert list(found_more) == ["mini.base.Layer.split"]


def test_a_class_that_is_said_to_inherit_from_itself_has_no_base() -> None:
    ours = "class Layer(Layer):\n    def split(self):\n        return self.heads\n"
    assert recorded(ours) == ()


def test_a_generator_is_stepped_through_however_it_is_made() -> None:
    files = {
        "mini/__init__.py": "",
        "mini/made.py": dedent("""
            class Made:
                async def told(self) -> AsyncIterator[int]:
                    yield 1

                def declared(self) -> AsyncGenerator[int, None]: ...

                async def awaited(self) -> int:
                    async def inner():
                        yield 1
        """),
    }
    names = Names(Tree(files).read)
    shape = {
        name: signatures.shape(names, value, ["override "])
        for name in ("told", "declared", "awaited")
        if (value := names.walk(f"mini.made.Made.{name}")) is not None
    }
    assert shape == {
        "told": "method () -> AsyncIterator[int]",
        "declared": "method () -> AsyncGenerator[int, None]",
        "awaited": "async method () -> int",
    }
    assert forms.fits(signatures.gives(shape["declared"]), "AsyncIterator")


# -- forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bool", "int | None"), ("int", "float"), ("list[int]", "Sequence[int]"), ("Any", "None"), ("None", "Any"),
        ("tuple[int, ...]", "tuple[int, int]"), ("tuple", "tuple[int, int]"), ("tuple[int, Any]", "tuple[int, str]"),
        ("Tensor", "Tensor | tuple[Tensor, Tensor]"), ("type[_]", "type"), ("Generator[int, None, None]", "Iterator"),
    ],
)  # fmt: skip
def test_what_passes_for_what(one: str, other: str) -> None:
    assert forms.fits(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Tensor | None", "Tensor"), ("float", "int"), ("tuple[int]", "tuple[int, int]"), ("_", "Tensor"),
        ("None", "int"), ("Tensor", "tuple[Tensor, Tensor]"), ("list[int]", "list[str]"), ("Iterator", "list"),
    ],
)  # fmt: skip
def test_what_does_not_pass(one: str, other: str) -> None:
    assert not forms.fits(one, other)


NAMES = st.from_regex(r"[a-z]{1,3}", fullmatch=True).filter(lambda n: not keyword.iskeyword(n))
LEAVES = st.sampled_from(["int", "Tensor", "_", "None", "Any", "str"])
FORMS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(
            lambda head, parts: f"{head}[{', '.join(parts)}]",
            st.sampled_from(["tuple", "list", "type"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.lists(inner.filter(lambda f: f != "Any"), min_size=1, max_size=3).map(" | ".join)
    ),
    max_leaves=6,
)


@given(FORMS, FORMS)
def test_a_form_passes_for_itself_and_for_more(one: str, other: str) -> None:
    assert forms.fits(one, one)
    assert forms.fits(one, f"{one} | {other}")


@st.composite
def signature(draw: st.DrawFn) -> signatures.Parameters:
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    positional = draw(st.integers(0, len(names)))
    required = draw(st.integers(0, positional))
    return tuple(
        signatures.Parameter(
            name=name,
            kind="either" if place < positional else "keyword",
            default=None
            if place < required or (place >= positional and draw(st.booleans()))
            else "1",
            form=draw(FORMS),
        )
        for place, name in enumerate(names)
    )


@given(signature(), FORMS)
def test_the_text_of_a_shape_says_all_of_it(parameters: signatures.Parameters, gives: str) -> None:
    words = f"method {signatures.text(parameters)} -> {gives}"
    again = signatures.parse(words)
    assert again is not None
    assert [(p.name, p.kind, p.default) for p in again] == [
        (p.name, p.kind, p.default) for p in parameters
    ]
    assert all(
        forms.fits(a.form, b.form) and forms.fits(b.form, a.form)
        for a, b in zip(again, parameters, strict=True)
    )
    assert signatures.kind(words) == "method"
    assert forms.fits(signatures.gives(words), gives)


@given(signature(), NAMES, st.booleans())
def test_any_parameter_more_is_seen_and_any_base_is_sound_for_its_own_copy(
    parameters: signatures.Parameters, extra: str, optional: bool
) -> None:
    assume(extra not in {one.name for one in parameters})
    words = signatures.text(parameters)
    more = (
        *parameters,
        signatures.Parameter(name=extra, kind="keyword", default="1" if optional else None),
    )
    base = f"class Base:\n    def run(self, {words[1:-1]}): ...\n".replace("self, )", "self)")
    after = (
        base.replace(words[1:-1] + ")", signatures.text(more)[1:-1] + ")")
        if words != "()"
        else (f"class Base:\n    def run(self, {signatures.text(more)[1:-1]}): ...\n")
    )
    ours = f"from mini.base import Base\n\n\nclass Ours(Base):\n    def run(self, {words[1:-1]}): ...\n"
    files = {"mini/__init__.py": "", BASE: base}
    held = uses.of_patch([OURS], Tree(files).read, Tree({**files, OURS: ours}).read)
    assert checked(Tree({**files, OURS: ours}), held) == {}
    found = checked(Tree({**files, BASE: after, OURS: ours}), held)
    assert found["mini.base.Base.run"].changes == (
        f"callers may pass `{extra}`, which ours does not take",
    )
