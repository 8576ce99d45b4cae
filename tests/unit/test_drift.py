"""Clean but wrong: upstream symbols that changed under a patch that still applies."""

from __future__ import annotations

import re

import pytest

from dspatch.carry.uses import drift, uses
from dspatch.carry.uses.binding import call_changes, differences, override_changes, parse_call
from dspatch.carry.uses.drift import GONE, Drift
from dspatch.carry.uses.names import Names
from dspatch.carry.uses.signatures import Parameters, parse
from dspatch.carry.uses.usesfile import Use
from tests.unit.drift_upstream import AFTER, BEFORE, OURS, Tree

USES = uses.of_patch(OURS, BEFORE.read, AFTER.read)
ABSTRACT = "mini/backends/abstract.py"
KERNELS = "mini/backends/kernels.py"
PLATFORM = "mini/platform.py"
REGISTRY = "mini/registry.py"
LAYERS = "mini/layers.py"


def of(symbol: str) -> Use:
    return next(use for use in USES if use.symbol == symbol)


def checked(tree: Tree) -> dict[str, Drift]:
    return {found.symbol: found for found in drift.check(USES, Names(tree.read))}


def test_what_a_patch_uses_is_found_through_types_bases_and_re_exports() -> None:
    found = {use.symbol: (use.shape, *use.ways) for use in USES}
    assert found["mini.backends.decode"] == (
        "function (q, cache, lengths, scale=1.0, *, causal=True)",
        "call (_, _, _, _, causal=_)",
        "import",
    )
    assert found["mini.backends.Attention"][1:] == ("import", "subclass _own", "subscript")
    assert found["mini.backends.Attention.dims"] == ("attribute", "read")
    assert found["mini.backends.Attention.dims.rank"] == ("field", "read")
    assert found["mini.backends.Attention.scale"] == ("attribute", "read")
    assert found["mini.backends.Attention.__init__"][1:] == (
        "call (_, _, _)",
        "override method (heads, scale, dims) -> None",
    )
    assert found["mini.backends.Attention.expand"][1:] == ("call (_, _)", "passed on")
    assert found["mini.backends.Attention.dtypes"] == ("attribute", "assign")
    assert found["mini.backends.Metadata"][1:] == (
        "call (_, slots=_)",
        "import",
        "read",
        "subclass",
    )
    assert found["mini.backends.Metadata.total"] == ("property", "read")
    assert found["mini.registry.LIMIT"] == ("constant", "read")
    assert found["mini.backends.kernel"][1:] == ("call (_)", "import")
    assert found["mini.platform.Config.block_size"] == ("attribute", "read")


def test_what_inserted_code_uses_of_the_code_around_it_is_found() -> None:
    found = {use.symbol: (use.shape, *use.ways) for use in USES}
    assert found["mini.platform.Platform.backend.config"] == ("parameter", "read")
    assert found["mini.platform.Platform.backend.config.block_size"] == ("attribute", "read")
    assert found["mini.platform.Platform.backend.chosen"] == ("local", "read")
    assert found["mini.platform.Backend.FLASH"] == ("enum member", "read")
    assert found["mini.layers.MLA.load.half"] == ("local", "read")
    assert found["mini.layers.MLA.proj.weight"] == ("attribute", "write")
    assert of("mini.layers.MLA.load.half").where == ("mini/layers.py: MLA.load",)


def test_our_own_symbols_are_none_of_upstream() -> None:
    symbols = [use.symbol for use in USES]
    assert not any("ours" in symbol or symbol.endswith(("OURS", "_own")) for symbol in symbols)


def test_nothing_has_drifted_on_the_tree_it_was_written_for() -> None:
    assert checked(AFTER) == {}


# The change, where, and what has to be said of which symbol.
PLANTED = {
    "parameter removed": (
        KERNELS, "lengths, scale=1.0, *, causal=True", "lengths, scale=1.0, *, extra=None",
        "mini.backends.decode", "causal= (`causal`) is no longer taken",
    ),
    "parameter renamed": (
        KERNELS, "q, cache, lengths", "q, kv_cache, lengths",
        "mini.backends.decode", "argument 2 was `cache` and is `kv_cache`",
    ),
    "parameters reordered": (
        KERNELS, "q, cache, lengths", "cache, q, lengths",
        "mini.backends.decode", "argument 1 was `q` and is `cache`",
    ),
    "new required parameter": (
        KERNELS, "q, cache, lengths, scale=1.0, *", "q, cache, lengths, scale=1.0, *, window",
        "mini.backends.decode", "`window` is required and new",
    ),
    "new optional parameter in between": (
        KERNELS, "metadata, threshold=1", "metadata, uniform=False, threshold=1",
        "mini.backends.kernels.split", "argument 2 was `threshold` and is `uniform`",
    ),
    "default changed of a parameter left out": (
        ABSTRACT, "causal: bool = True", "causal: bool = False",
        "mini.backends.Metadata", "the default of `causal` was True and is False",
    ),
    "parameter became keyword-only": (
        KERNELS, "lengths, scale=1.0, *, causal", "lengths, *, scale=1.0, causal",
        "mini.backends.decode", "argument 4 (`scale`) is no longer taken",
    ),
    "argument swallowed by **kwargs": (
        KERNELS, "scale=1.0, *, causal=True", "scale=1.0, **kwargs",
        "mini.backends.decode", "causal= (`causal`) is no longer taken, only by `**`",
    ),
    "method turned property": (
        ABSTRACT, "    def expand(self, kv, pe):", "    @property\n    def expand(self):",
        "mini.backends.Attention.expand", "it was a method and is a property",
    ),
    "method turned staticmethod": (
        ABSTRACT, "    def expand(self, kv, pe):", "    @staticmethod\n    def expand(kv, pe):",
        "mini.backends.Attention.expand", "it was a method and is a staticmethod",
    ),
    "method turned classmethod": (
        ABSTRACT, "    def expand(self, kv, pe):", "    @classmethod\n    def expand(cls, kv, pe):",
        "mini.backends.Attention.expand", "it was a method and is a classmethod",
    ),
    "method turned coroutine": (
        ABSTRACT, "    def expand(self, kv, pe):", "    async def expand(self, kv, pe):",
        "mini.backends.Attention.expand", "it was a method and is an async method",
    ),
    "function passed by name lost a parameter": (
        ABSTRACT, "def expand(self, kv, pe):", "def expand(self, kv):",
        "mini.backends.Attention.expand", "parameter `pe` is gone",
    ),
    "attribute gone": (
        ABSTRACT, "        self.scale = scale\n", "        self._scale = scale\n",
        "mini.backends.Attention.scale", "it is no longer there",
    ),
    "attribute set by us became a property": (
        LAYERS, "    def forward(self, x):", "    @property\n    def weight(self): ...\n\n    def forward(self, x):",
        "mini.layers.MLA.proj.weight", "our code sets it, and it is a property",
    ),
    "class moved": (
        "mini/backends/__init__.py", "import Attention, Builder, Metadata\n", "import Builder, Metadata\n",
        "mini.backends.Attention", "it is no longer there",
    ),
    "class moved out of a module": (
        PLATFORM, "class Config:", "class ModelConfig:",
        "mini.platform.Config", "it is no longer there",
    ),
    "base class's hook renamed": (
        ABSTRACT, "def forward(self, q,", "def forward_mqa(self, q,",
        "mini.backends.Attention.forward", "it is no longer there",
    ),
    "base class's attribute renamed": (
        ABSTRACT, 'dtypes = ["float"]', 'supported_dtypes = ["float"]',
        "mini.backends.Attention.dtypes", "it is no longer there",
    ),
    "hook got a parameter": (
        ABSTRACT, "metadata: Metadata, layer=None", "metadata: Metadata, layer=None, output=None",
        "mini.backends.Attention.forward", "callers may pass `output`, which ours does not take",
    ),
    "hook lost a parameter that ours needs": (
        ABSTRACT, "def update(self, cache, slots):", "def update(self, cache):",
        "mini.backends.Attention.update", "callers no longer pass `slots`, which ours needs",
    ),
    "hook's default changed": (
        ABSTRACT, "fast: bool = False", "fast: bool = True",
        "mini.backends.Builder.build", "the default of `fast` was False and is True",
    ),
    "hook's parameters reordered": (
        ABSTRACT, "def update(self, cache, slots):", "def update(self, slots, cache):",
        "mini.backends.Attention.update", "`cache` was parameter 1 and is 2",
    ),
    "new abstract method": (
        ABSTRACT, "    def expand(self", "    @abstractmethod\n    def warm(self): ...\n\n    def expand(self",
        "mini.backends.Attention", "`warm` is abstract, and our `OurAttention` does not define it",
    ),
    "base class took a name of ours": (
        ABSTRACT, "    def expand(self", "    def _own(self): ...\n\n    def expand(self",
        "mini.backends.Attention", "it has a `_own` now",
    ),
    "base class's constructor changed": (
        ABSTRACT, "scale: float, dims: Dims) ->", "scale: float, window: int, dims: Dims) ->",
        "mini.backends.Attention.__init__", "argument 3 was `dims` and is `window`",
    ),
    "enum member gone": (
        REGISTRY, "    FLASH =", "    FLASH_ATTN =",
        "mini.platform.Backend.FLASH", "it is no longer there",
    ),
    "enum became a plain class": (
        REGISTRY, "class Backend(Enum):", "class Backend:",
        "mini.platform.Backend", "it was an enum and is a class",
    ),
    "dataclass field gone": (
        ABSTRACT, "    slots: list[int]\n", "",
        "mini.backends.Metadata.slots", "it is no longer there",
    ),
    "dataclass got a required field": (
        ABSTRACT, "    slots: list[int]\n", "    slots: list[int]\n    blocks: list[int]\n",
        "mini.backends.Metadata", "`blocks` is required and new",
    ),
    "NamedTuple field gone": (
        ABSTRACT, "    rank: int\n", "    kv_rank: int\n",
        "mini.backends.Attention.dims.rank", "it is no longer there",
    ),
    "constant gone": (
        REGISTRY, "LIMIT = 4096", "MAX_LIMIT = 4096",
        "mini.registry.LIMIT", "it is no longer there",
    ),
    "decorator gone": (
        "mini/backends/__init__.py", "import decode, kernel\n", "import decode\n",
        "mini.backends.kernel", "it is no longer there",
    ),
    "decorator turned factory": (
        KERNELS, "def kernel(function):", "def kernel(*, name):",
        "mini.backends.kernel", "argument 1 (`function`) is no longer taken",
    ),
    "local variable renamed": (
        LAYERS, "half = weight", "half_weight = weight",
        "mini.layers.MLA.load.half", "it is no longer there",
    ),
    "parameter of the edited function renamed": (
        PLATFORM, "def backend(cls, config: Config", "def backend(cls, model_config: Config",
        "mini.platform.Platform.backend.config", "it is no longer there",
    ),
    "class became a function": (
        PLATFORM, "class Config:\n    def __init__(self, heads, block_size=16):",
        "def Config(heads, block_size=16):\n    if True:\n        self = object()",
        "mini.platform.Config", "it was a class and is a function",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_caught(name: str) -> None:
    path, old, new, symbol, said = PLANTED[name]
    found = checked(AFTER.changed(path, old, new))
    assert symbol in found, sorted(found)
    assert said in "; ".join(found[symbol].changes)
    assert found[symbol].was == of(symbol).shape
    assert found[symbol].where == of(symbol).where


HARMLESS = {
    "new optional parameter at the end": (KERNELS, "causal=True)", "causal=True, window=None)"),
    "new optional positional parameter behind ours": (KERNELS, "threshold=1)", "threshold=1, uniform=False)"),
    "docstring": (KERNELS, '"""Attention."""', '"""Other words."""'),
    "body": (KERNELS, "return q\n", "return q + 0\n"),
    "annotation": (ABSTRACT, "heads: int, scale: float", "heads: 'int', scale: object"),
    "return annotation": (ABSTRACT, "def name() -> str:", "def name():"),
    "default of a parameter that we give": (KERNELS, "scale=1.0", "scale=2.0"),
    "parameter that we give became optional": (KERNELS, "cache, lengths, scale", "cache, lengths=None, scale"),
    "value of a constant": (REGISTRY, "LIMIT = 4096", "LIMIT = 8192"),
    "value of an enum member": (REGISTRY, "backends.flash.", "backends.flash_attn."),
    "a symbol that nobody uses": (ABSTRACT, "def name() -> str:", "def other() -> str:"),
    "attribute became a property that is only read": (
        ABSTRACT, "    def expand(self", "    @property\n    def scale(self): ...\n\n    def expand(self",
    ),
    "property became a field": (
        ABSTRACT,
        "    @property\n    def total(self) -> int:\n        return sum(self.lengths)\n",
        "    total: int = 0\n",
    ),
    "order of the functions": (KERNELS, 'def kernel(function):\n    return function\n\n\n', ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_is_not_reported(name: str) -> None:
    path, old, new = HARMLESS[name]
    tree = AFTER.changed(path, old, new)
    if name == "order of the functions":
        tree = Tree({**tree.files, path: tree.files[path] + "\n\n" + old.rstrip() + "\n"})
    assert checked(tree) == {}


def test_a_class_that_moved_behind_its_re_export_is_still_where_we_import_it() -> None:
    moved = {**AFTER.files, "mini/backends/interface.py": AFTER.files[ABSTRACT], ABSTRACT: ""}
    init = moved["mini/backends/__init__.py"].replace("backends.abstract", "backends.interface")
    assert checked(Tree({**moved, "mini/backends/__init__.py": init})) == {}


def test_a_variable_that_our_code_does_not_name_on_this_tree_is_no_drift() -> None:
    path, old, new, symbol, _ = PLANTED["parameter of the edited function renamed"]
    renamed = AFTER.changed(path, old, new)
    assert symbol in checked(renamed)
    body = renamed.files[path]
    assert re.search(r"\bconfig\b", body)
    other = Tree({**renamed.files, path: re.sub(r"\bconfig\b", "model_config", body)})
    assert symbol not in checked(other)


def test_a_symbol_that_our_code_imports_from_elsewhere_on_this_tree_is_held_there() -> None:
    ours, whole = "mini/backends/ours.py", "Attention, Builder, Metadata, decode, kernel"
    new = "mini/backends/interface.py"
    moved = {**AFTER.files, new: AFTER.files[ABSTRACT], "mini/backends/__init__.py": ""}
    assert whole in moved[ours]
    moved[ours] = moved[ours].replace(
        f"from mini.backends import {whole}",
        "from mini.backends.interface import Attention, Builder, Metadata\n"
        "from mini.backends.kernels import decode, kernel",
    )
    assert checked(Tree(moved)) == {}
    fewer = moved[new].replace("fast: bool = False", "quick: bool, fast: bool = False")
    assert fewer != moved[new]
    found = checked(Tree({**moved, new: fewer}))
    assert list(found) == ["mini.backends.Builder.build"]


def test_what_hangs_on_a_symbol_that_is_gone_is_told_once() -> None:
    found = checked(AFTER.changed(ABSTRACT, "        self.dims = dims\n", ""))
    assert [d for d in found if ".dims" in d] == ["mini.backends.Attention.dims"]


def test_a_type_that_is_no_longer_told_is_no_drift() -> None:
    tree = AFTER.changed(ABSTRACT, "scale: float, dims: Dims) ->", "scale: float, dims) ->")
    assert checked(tree) == {}


def test_a_drift_says_what_it_was_what_it_is_and_where_it_is_used() -> None:
    found = checked(AFTER.changed(REGISTRY, "    FLASH =", "    FLASH_ATTN ="))
    assert found["mini.platform.Backend.FLASH"].words == (
        "mini.platform.Backend.FLASH: it is no longer there\n"
        "    was   enum member\n"
        f"    is    {GONE}\n"
        "    used  mini/platform.py: Platform.backend"
    )


def test_only_the_modules_that_the_symbols_lead_to_are_read() -> None:
    tree = Tree({**AFTER.files, "mini/other.py": "def f(: not python\n"})
    assert drift.check(USES, Names(tree.read)) == ()
    assert "mini/other.py" not in tree.asked


def signature(words: str) -> Parameters:
    found = parse(f"function {words}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("call", "was", "now", "said"),
    [
        # What is passed through comes from a caller that knows the new signature.
        ("(*_, **_)", "(a, b, c=1)", "(a, d, c=2)", []),
        ("(_, **_)", "(a, b)", "(a, c)", []),
        ("(_, **_)", "(a, b)", "(x, b)", ["argument 1 was `a` and is `x`"]),
        ("(b=_, **_)", "(a, b)", "(a)", ["b= (`b`) is no longer taken"]),
        ("(_)", "(a, /, b=1)", "(a, /, b=1, *, c=2)", []),
        ("(a=_)", "(a)", "(a, /)", ["a= (`a`) is no longer taken"]),
        ("(_)", "(a, b=1)", "(a, b)", ["`b` is required now"]),
        ("(_, _)", "(a, *rest)", "(a, b=1, *rest)", ["argument 2 was `*` and is `b`"]),
    ],
)
def test_what_a_change_means_to_a_call(call: str, was: str, now: str, said: list[str]) -> None:
    assert call_changes(parse_call(call), signature(was), signature(now)) == said


@pytest.mark.parametrize(
    ("own", "was", "now", "said"),
    [
        ("(*args, **kwargs)", "(a, b)", "(b, c)", []),
        ("(a, **kwargs)", "(a)", "(a, b)", []),
        ("(a, b)", "(a)", "(a, b)", []),
        ("(a, b=1)", "(a, b)", "(a, b=1)", []),
        ("(a, b)", "(a, b)", "(a, b=1)", ["`b` is optional now, 1"]),
        ("(a)", "(a)", "(a, /)", ["`a` was positional and is positional-only"]),
        ("(a, b=1)", "(a, b=1)", "(a)", []),
        (
            "(a, b)", "(a, b)", "(a, c)",
            ["callers may pass `c`, which ours does not take", "callers no longer pass `b`, which ours needs"],
        ),
    ],
)  # fmt: skip
def test_what_a_change_means_to_an_override(own: str, was: str, now: str, said: list[str]) -> None:
    assert override_changes(signature(own), signature(was), signature(now)) == said


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("(a)", "(a, b=1)", []),
        ("(a, b)", "(a, b=1)", []),
        ("(a)", "(b, a)", ["`b` is required and new", "`a` was parameter 1 and is 2"]),
        ("(a, b=1)", "(a, b)", ["`b` is required now"]),
        ("(a, *, b=1)", "(a, b=1)", ["`b` was keyword-only and is positional"]),
    ],
)
def test_what_a_change_means_to_callers_nobody_knows(was: str, now: str, said: list[str]) -> None:
    assert list(differences(signature(was), signature(now))) == said


def test_a_symbol_named_in_a_string_is_used() -> None:
    files = {**AFTER.files, "mini/named.py": 'LAZY = "mini.backends.kernels.split"\n'}
    found = uses.of_patch(["mini/named.py"], BEFORE.read, Tree(files).read)
    assert [(use.symbol, use.ways) for use in found] == [
        ("mini.backends.kernels.split", ("named in a string",))
    ]
    gone = Tree(files).changed(KERNELS, "def split(", "def split_batch(")
    assert [d.now for d in drift.check(found, Names(gone.read))] == [GONE]
