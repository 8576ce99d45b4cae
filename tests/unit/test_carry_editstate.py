"""An edit that is already made is known, so that it is not made twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.carry.upstreamed.editstate import made_at
from dspatch.edits import Edit, Verb, apply_edit
from tests.support import PLATFORM, REGISTRY, dedent

BACKEND = "CpuPlatform.backend"
RAISE = 'raise NotImplementedError("MLA is not supported on CPU.")'


def on(symbol: str | None, verb: Verb, text: str, find: str) -> Edit:
    return Edit(file="f", verb=verb, symbol=symbol, find=find, text=text)


EDITS = [
    (PLATFORM, on(BACKEND, "replace", 'return "CPU_MLA"', RAISE)),
    (PLATFORM, on(BACKEND, "replace", "use_sparse and not use_mla", "use_sparse")),
    (PLATFORM, on(BACKEND, "insert-before", "check()\nprint(use_mla)", "if use_sparse: ...")),
    (PLATFORM, on(BACKEND, "insert-after", "print(use_mla)", "if use_mla: ...")),
    (
        PLATFORM,
        on("CpuPlatform", "insert-after", "\ndef more(self):\n    return 1\n", 'name = "cpu"'),
    ),
    (PLATFORM, on(None, "insert-after", "print(CpuPlatform)\n", "class CpuPlatform: ...")),
    (REGISTRY, on("Backend", "insert-after", 'MLA = "mini.mla"', 'CPU_ATTN = "mini.cpu_attn"')),
    (REGISTRY, on(None, "insert-after", "import os", "from enum import Enum")),
]


@pytest.mark.parametrize(("source", "edit"), EDITS)
def test_an_edit_is_made_exactly_once_it_was_made(source: str, edit: Edit) -> None:
    assert made_at(source.encode(), edit) is None
    made = apply_edit(source.encode(), edit)
    assert made_at(made, edit) is not None
    assert made_at(b"# a line more\n\n" + made, edit) == (made_at(made, edit) or 0) + 2


def test_it_counts_although_it_is_written_otherwise_and_its_place_is_gone() -> None:
    edit = EDITS[0][1]
    source = dedent(
        """
        class CpuPlatform:
            @classmethod
            def backend(cls, use_mla: bool) -> str:
                if (use_mla):
                    # upstream's way
                    return 'CPU_MLA'
                return "CPU_ATTN"
        """
    )
    assert made_at(source.encode(), edit) == 6


def test_text_that_is_there_while_its_place_still_waits_is_not_the_edit() -> None:
    source = PLATFORM.replace('return "CPU_ATTN"', 'return "CPU_MLA"')
    assert made_at(source.encode(), EDITS[0][1]) is None


def test_a_statement_elsewhere_in_the_symbol_is_not_the_insertion() -> None:
    source = PLATFORM.replace("        # a comment that stays\n", "        print(use_mla)\n")
    assert made_at(source.encode(), EDITS[3][1]) is None


def test_an_import_elsewhere_in_the_symbol_is() -> None:
    source = REGISTRY.replace(
        "from enum import Enum\n", "from enum import Enum\nimport re\nimport os\n"
    )
    assert made_at(source.encode(), EDITS[7][1]) == 3


def test_an_assignment_elsewhere_in_a_function_is_not() -> None:
    source = "def run():\n    left = None\n    step()\n    finish()\n"
    edit = Edit(file="f", verb="insert-after", symbol="run", find="step()", text="left = None")
    assert made_at(source.encode(), edit) is None
    branch = "def run():\n    if x:\n        import os\n    step()\n"
    edit = Edit(file="f", verb="insert-after", symbol="run", find="step()", text="import os")
    assert made_at(branch.encode(), edit) is None


def test_code_that_is_only_taken_away_is_never_seen_as_made() -> None:
    edit = Edit(file="p", verb="replace", symbol=BACKEND, find="if use_sparse: ...", text="")
    assert made_at(apply_edit(PLATFORM.encode(), edit), edit) is None


def test_wildcards_are_those_of_the_pattern_not_of_the_text() -> None:
    edit = Edit(file="p", verb="insert-after", find="import os", text="def stub(): ...\n")
    assert made_at(b"import os\ndef stub():\n    return 1\n", edit) is None
    assert made_at(b"import os\ndef stub():\n    ...\n", edit) == 2


def test_another_symbol_and_broken_sources_hold_nothing() -> None:
    edit = EDITS[0][1]
    made = apply_edit(PLATFORM.encode(), edit)
    assert made_at(made.replace(b"CpuPlatform", b"GpuPlatform"), edit) is None
    assert made_at(b"def (:", edit) is None


NAMES = st.sampled_from(["a", "b", "c"])
STATEMENTS = st.one_of(
    st.builds("{} = 1".format, NAMES),
    st.builds("print({})".format, NAMES),
    st.builds("if {}:\n    {}()".format, NAMES, NAMES),
)


@given(body=st.lists(STATEMENTS, min_size=1, max_size=6), text=STATEMENTS, at=st.integers(0, 5))
def test_an_insertion_beside_its_anchor_is_seen_whatever_stands_around(
    body: list[str], text: str, at: int
) -> None:
    body.insert(at % len(body), "anchor()")
    source = ("\n".join(body) + "\n").encode()
    for verb in ("insert-before", "insert-after"):
        edit = Edit(file="f", verb=verb, find="anchor()", text=text)
        assert made_at(apply_edit(source, edit), edit) is not None
