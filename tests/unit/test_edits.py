"""Edits: found by meaning, spliced as bytes."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspatch.edits import Edit, apply_edit
from dspatch.errors import EditError
from tests.support import PLATFORM, REGISTRY, dedent


def edit(verb: str, text: str, find: str, symbol: str | None = None) -> Edit:
    return Edit(file="m.py", verb=verb, text=text, find=find, symbol=symbol)  # type: ignore[arg-type]


RAISE = 'raise NotImplementedError("MLA is not supported on CPU.")'


def test_replace_touches_only_the_statement() -> None:
    out = apply_edit(
        PLATFORM.encode(), edit("replace", 'return "CPU_MLA"', RAISE, "CpuPlatform.backend")
    )
    assert out.decode() == PLATFORM.replace(RAISE, 'return "CPU_MLA"')


def test_formatting_of_the_upstream_code_does_not_matter() -> None:
    source = PLATFORM.replace(
        RAISE,
        "raise NotImplementedError(\n                \"MLA is not supported \"\n                'on CPU.')  # why",
    )
    out = apply_edit(source.encode(), edit("replace", "return 1", RAISE))
    assert "return 1" in out.decode()
    assert "MLA is not supported" not in out.decode()


def test_insert_after_an_enum_member() -> None:
    out = apply_edit(
        REGISTRY.encode(),
        edit("insert-after", 'CPU_MLA = "mini.cpu_mla"', 'FLASH = "mini.flash"', "Backend"),
    )
    expected = REGISTRY.replace("    )\n", '    )\n    CPU_MLA = "mini.cpu_mla"\n', 1)
    assert out.decode() == expected


def test_insert_before_with_a_wildcard_body() -> None:
    out = apply_edit(
        PLATFORM.encode(),
        edit("insert-before", "log()", "if use_sparse: ...", "CpuPlatform.backend"),
    )
    assert "        log()\n        if use_sparse:\n" in out.decode()


def test_replace_an_expression_keeps_its_line() -> None:
    source = b"x = f(a, b) + g(1)  # keep\n"
    assert apply_edit(source, edit("replace", "h(2)", "f(...)")) == b"x = h(2) + g(1)  # keep\n"


def test_insert_at_the_end_of_a_class_and_of_a_file_without_a_newline() -> None:
    source = b"class A:\n    x = 1\n\n\ny = 2"
    assert apply_edit(source, edit("insert-after", "z = 3", "x = 1", symbol="A")) == (
        b"class A:\n    x = 1\n    z = 3\n\n\ny = 2"
    )
    assert apply_edit(source, edit("insert-after", "z = 3", "y = 2")) == source + b"\nz = 3\n"


def test_non_ascii_and_crlf_keep_their_bytes() -> None:
    source = "# größe\r\nname = 'ü'; \r\nif a:\r\n    b('é')\r\n".encode()
    out = apply_edit(source, edit("insert-after", "c()\nd()", "b('é')"))
    assert out == source + b"    c()\r\n    d()\r\n"


def test_a_missing_symbol_names_the_nearest() -> None:
    with pytest.raises(EditError) as error:
        apply_edit(
            PLATFORM.encode(), edit("insert-after", "x = 1", "y = 2", symbol="CpuPlatform.backends")
        )
    assert "there is no `CpuPlatform.backends`" in error.value.what
    assert "CpuPlatform.backend" in error.value.why


def test_missing_code_names_the_nearest_line() -> None:
    with pytest.raises(EditError) as error:
        apply_edit(
            PLATFORM.encode(), edit("replace", "x", 'raise NotImplementedError("MLA is refused.")')
        )
    assert "nearest found: line 11" in error.value.why


def test_two_places_are_refused() -> None:
    with pytest.raises(EditError, match="stands in 2 places"):
        apply_edit(PLATFORM.encode(), edit("replace", "pass", "raise NotImplementedError(...)"))


def test_a_result_that_is_not_python_is_refused() -> None:
    with pytest.raises(EditError, match="not Python"):
        apply_edit(PLATFORM.encode(), edit("replace", "return (", RAISE))


def test_a_statement_that_shares_its_line_is_refused() -> None:
    with pytest.raises(EditError, match="shares its line"):
        apply_edit(b"if a: b()\n", edit("insert-after", "c()", "b()"))


def test_decorators_belong_to_the_function() -> None:
    source = dedent("""
        @wrapped
        def f():
            return 1
    """).encode()
    out = apply_edit(source, edit("insert-before", "import os", "def f(): ..."))
    assert out.startswith(b"import os\n@wrapped\n")


def test_blank_lines_around_a_text_are_kept() -> None:
    source = b"class A:\n    x = 1\n\n\ny = 2\n"
    out = apply_edit(
        source, edit("insert-after", "\ndef f(self):\n    pass\n", "x = 1", symbol="A")
    )
    assert out == b"class A:\n    x = 1\n\n    def f(self):\n        pass\n\n\ny = 2\n"
    out = apply_edit(source, edit("insert-before", "z = 3\n\n\n", "class A: ..."))
    assert out == b"z = 3\n\n\n" + source


def test_an_empty_text_takes_the_statement_away() -> None:
    assert apply_edit(b"a = 1\nb = 2\n", edit("replace", "", "a = 1")) == b"b = 2\n"


def test_a_def_without_parameters_and_body_is_found_by_its_name() -> None:
    source = b"def f(a, *, b=1):\n    return a\n\n\ndef g():\n    pass\n"
    out = apply_edit(source, edit("replace", "def f():\n    return 2", "def f(): ..."))
    assert out == b"def f():\n    return 2\n\n\ndef g():\n    pass\n"
    with pytest.raises(EditError, match="is not there"):
        apply_edit(source, edit("replace", "x", "def f(c): ..."))


NAMES = st.text(alphabet="abcdefgh_", min_size=1, max_size=6).map(lambda s: "v" + s)
LINES = st.lists(st.builds("{} = {!r}".format, NAMES, st.text(max_size=5)), min_size=1, max_size=8)


@given(before=LINES, after=LINES, newline=st.sampled_from(["\n", "\r\n"]))
def test_reverse_edit_is_identity_and_the_rest_keeps_its_bytes(
    before: list[str], after: list[str], newline: str
) -> None:
    head = newline.join(["def f():", *("    " + line for line in before)])
    tail = newline.join(["    " + line for line in after]) + newline
    source = f"{head}{newline}    unique_call(1){newline}{tail}".encode()
    there = apply_edit(source, edit("replace", "other_call(2)", "unique_call(1)", "f"))
    back = apply_edit(there, edit("replace", "unique_call(1)", "other_call(2)", "f"))
    ast.parse(there)
    assert back == source
    assert there == source.replace(b"unique_call(1)", b"other_call(2)")
