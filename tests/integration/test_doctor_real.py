"""Every signature whose words are an engine's, held against that release's source, read by range.

The words must stand in one string of the file, however the code breaks it over lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dspatch.audit.origins import published
from dspatch.audit.signature import Raised
from dspatch.audit.source import Source
from dspatch.carry.remote import releases
from dspatch.carry.remote.ranges import Traffic
from tests import doctorkit

pytestmark = pytest.mark.e2e


def engine_of(raised: Raised) -> str:
    return raised.file.partition("/")[0]


CASES = sorted(
    {(engine_of(one.raised), one.raised) for _, one in doctorkit.signatures() if one.raised},
    key=lambda case: (case[0], case[1].rev, case[1].file, case[1].text),
)


@pytest.fixture(scope="module")
def sources() -> Iterator[dict[tuple[str, str], Source]]:
    """The source of every release that is named, open until the end."""
    opened: dict[tuple[str, str], Source] = {}
    with ExitStack() as stack:
        for engine in sorted({engine for engine, _ in CASES}):
            known = releases.published(engine, prereleases=True, yanked=True)
            for rev in sorted({raised.rev for name, raised in CASES if name == engine}):
                one = published(engine, rev, Traffic(), native=False, among=known)
                opened[engine, rev] = stack.enter_context(one)
        yield opened


def strings(text: str) -> Iterator[str]:
    """The strings of a module; what an f-string fills in is a NUL."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values
            )


@pytest.mark.parametrize(
    ("engine", "raised"), CASES, ids=lambda each: each if isinstance(each, str) else each.file
)
def test_the_release_can_print_the_line(
    engine: str, raised: Raised, sources: dict[tuple[str, str], Source]
) -> None:
    data = sources[engine, raised.rev].read(raised.file)
    assert data is not None, raised
    assert any(raised.text in found for found in strings(data.decode())), raised


def test_words_that_no_release_prints_are_caught(sources: dict[tuple[str, str], Source]) -> None:
    engine, raised = CASES[0]
    data = sources[engine, raised.rev].read(raised.file)
    assert data is not None
    assert not any(f"{raised.text} never" in found for found in strings(data.decode()))


def test_most_signatures_of_engines_are_held_against_a_source() -> None:
    assert {engine for engine, _ in CASES} == {"vllm", "lmdeploy"}
    assert len(CASES) >= 40
