"""Any edit: the result parses, what it does not touch keeps its bytes, and taking it back gives the source."""

from __future__ import annotations

import ast
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dspatch.edits import Edit, Verb, apply_edit

NAMES = st.text(alphabet="abcdefgh_", min_size=1, max_size=6).map(lambda s: "v" + s)
STATEMENT = st.one_of(
    st.builds("{} = {!r}".format, NAMES, st.text(max_size=6)),
    st.builds("{}(1,  2 )  # ü".format, NAMES),
    st.sampled_from(
        ["if a:\n    pass", "x = [\n    1,\n    2,\n]", "", "# a word", "pass;  y = 2"]
    ),
)
BLOCK = st.lists(STATEMENT, max_size=5)
NEW = st.sampled_from(
    ["other_call(2)", "if new:\n    other_call(2)", "n1 = 1\nn2 = 2", "def g():\n    return 'é'"]
)
ENDS = st.sampled_from(["\n", "\r\n"])


def source_of(before: list[str], after: list[str], end: str, last: bool) -> bytes:
    """A module with a function in which `unique_call(1)` stands once."""
    body = [line for text in [*before, "unique_call(1)", *after] for line in text.split("\n")]
    lines = [
        "import os",
        "",
        "def f():",
        *(f"    {line}".rstrip(" ") for line in body),
        "",
        "z = 1",
    ]
    return (end.join(lines) + (end if last else "")).encode()


def edit(verb: Verb, text: str, find: str, symbol: str | None = "f") -> Edit:
    return Edit(file="m.py", verb=verb, symbol=symbol, find=find, text=text)


@settings(max_examples=200)
@given(
    before=BLOCK, after=BLOCK, new=NEW, end=ENDS, last=st.booleans(),
    verb=st.sampled_from(["replace", "insert-before", "insert-after"]),
)  # fmt: skip
def test_an_edit_touches_its_place_alone(
    before: list[str], after: list[str], new: str, end: str, last: bool, verb: Any
) -> None:
    source = source_of(before, after, end, last)
    result = apply_edit(source, edit(verb, new, "unique_call(1)"))
    ast.parse(result)
    own = end.join(f"    {line}" for line in new.split("\n")).encode()
    call = b"    unique_call(1)"
    if verb == "replace":
        assert result == source.replace(call, own)
        assert result.replace(own, call) == source
        return
    at = {"insert-before": result.find(call) - len(own) - len(end)}.get(verb, -1)
    if verb == "insert-after":
        at = result.find(call) + len(call) + len(end)
    assert result[at : at + len(own)] == own
    assert result[:at] + result[at + len(own) + len(end) :] == source


@settings(max_examples=100)
@given(before=BLOCK, after=BLOCK, new=NEW, end=ENDS, last=st.booleans())
def test_an_insertion_is_taken_back_by_an_edit(
    before: list[str], after: list[str], new: str, end: str, last: bool
) -> None:
    source = source_of(before, after, end, last)
    one = "only_here(3)" if "\n" in new else new
    result = apply_edit(source, edit("insert-after", one, "unique_call(1)"))
    assert apply_edit(result, edit("replace", "", one)) == source
