"""What unit tests of several modules need set up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.index_server import Index, serve


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index that is the only one."""
    with serve() as running:
        running.alone(monkeypatch)
        yield running
