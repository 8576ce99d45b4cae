"""The official client and schemathesis, in the environment that dspatch makes for them."""

from __future__ import annotations

from typing import Any

import pytest

from dspatch.conformance.api import client
from dspatch.engines import silent
from tests.unit.apikit import asking, serving

pytestmark = pytest.mark.e2e

# A rule that a server breaks, and what the client must make of it.
FAULTS = {
    "drops": "client.answers",
    "arguments-lost": "client.tools",
    "no-created": "client.types",
    "not-404": "client.errors",
    "wrong-500": "schema.drawn",
}


def checked(fault: str, limit: int = 300) -> dict[str, Any]:
    with serving(fault) as url, asking(url, limit=limit) as server:
        found = {result.check: result for result in client.check(server, silent)}
        assert server.wire.count <= limit
    return found


def test_a_right_server_is_taken_by_the_client() -> None:
    found = checked("")
    assert set(found) == set(client.NAMES) == set(FAULTS.values())
    assert [(one.check, one.note) for one in found.values() if one.status != "pass"] == []


class Several(str):
    """Rules broken at once; equal to the name of each, so that one start of the client sees all."""

    def __eq__(self, other: object) -> bool:
        return other in self.split()

    __hash__ = str.__hash__


def test_what_the_client_cannot_take_is_seen() -> None:
    found = checked(Several(" ".join(FAULTS)))
    for fault, name in FAULTS.items():
        assert found[name].status == "fail", (fault, found[name])


def test_what_could_not_be_asked_is_not_shown() -> None:
    found = checked("undescribed", limit=4)
    assert [found[name].status for name in client.NAMES] == ["pass"] + ["not-shown"] * 4
