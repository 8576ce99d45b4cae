"""The nearest release is one with a wheel: an sdist alone is not read for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dspatch import fetch
from dspatch.audit import nearest, source
from dspatch.audit.recorded import Recorded
from dspatch.carry.remote.ranges import Traffic
from tests import audit_kit
from tests.unit import release_files
from tests.unit.index_server import Index, Served, serve


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """0.9.0 has a wheel; 0.10.0, which is newer, has an sdist only."""
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    with serve() as server:
        server.alone(monkeypatch)
        audit_kit.offer(server, v0_9_0=audit_kit.FILES)
        data = release_files.sdist("0.10.0")
        server.add("vllm-0.10.0.tar.gz", Served(data=data), "vllm")
        yield server


@pytest.mark.parametrize(
    ("version", "recorded", "found"),
    [
        (None, (), "0.9.0"),
        (None, ("0.9.0", "0.10.0"), "0.9.0"),
        ("0.9.0+ours", (), "0.9.0"),
        ("0.10.0", (), None),
        ("0.11.0", (), "0.9.0"),
    ],
)
def test_a_release_without_a_wheel_is_not_compared(
    version: str | None, recorded: tuple[str, ...], found: str | None, index: Index, tmp_path: Path
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/cpu.py").write_text(audit_kit.BAD)
    (tmp_path / "vllm/models.py").write_text("MODELS = {}\n")
    ours = source.of_folder(
        "vllm", tmp_path, version=version, kind="folder", origin="x", package="vllm"
    )
    ours.read("vllm/cpu.py")
    ours.read("vllm/models.py")
    near = nearest.nearest(ours, {}, Recorded(releases=recorded), Traffic())
    assert (near.version if near else None) == found
    if near is not None:
        assert (near.differing, near.compared) == (("vllm/models.py",), 2)
