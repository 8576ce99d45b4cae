"""What vLLM is told about a GPU's memory, so that engines beside each other do not disturb."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dspatch.engines.workers.vllm_worker import memory

SHARE = {"gpu_memory_utilization": pytest.approx(12 / 140)}
SIZE = {"kv_cache_memory_bytes": 1 << 30}


@pytest.mark.parametrize(
    ("gigabytes", "known", "told"),
    [
        (140, ["model", "kv_cache_memory_bytes"], {**SHARE, **SIZE}),
        # A release that knows no size is told the share alone.
        (140, ["model"], SHARE),
        (12, ["model"], {"gpu_memory_utilization": 0.9}),
    ],
)
def test_the_size_of_the_cache_is_said_where_a_release_knows_it(
    gigabytes: int, known: list[str], told: dict[str, Any]
) -> None:
    assert memory.sized(gigabytes << 30, known) == told


@pytest.mark.parametrize(("cpu", "told"), [(True, {}), (False, {**SHARE, **SIZE})])
def test_only_a_gpu_is_divided_and_by_what_its_platform_says(
    cpu: bool, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm: Any = ModuleType("vllm")
    vllm.EngineArgs = SimpleNamespace(__dataclass_fields__={"kv_cache_memory_bytes": None})
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(
        is_cuda_alike=lambda: not cpu, get_device_total_memory=lambda: 140 << 30
    )
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    assert memory.arguments() == told


@pytest.mark.parametrize(
    ("source", "share", "more"),
    [
        ("class EngineArgs:\n    kv_cache_memory_bytes: int | None = None\n", True, [str(1 << 30)]),
        ("class EngineArgs:\n    gpu_memory_utilization: float = 0.9\n", True, []),
        ("class EngineArgs:\n    kv_cache_memory_bytes: int | None = None\n", False, []),
    ],
    ids=["told", "unknown to the release", "no GPU"],
)
def test_a_server_beside_others_is_told_the_size_of_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, share: bool, more: list[str]
) -> None:
    # A release that is not told it measures what is free at its start, and dies when that changes meanwhile.
    package = tmp_path / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "engine" / "arg_utils.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    given = ["--port", "1", *(["--gpu-memory-utilization", "0.3"] if share else [])]
    assert memory.told(given) == given + (["--kv-cache-memory-bytes", *more] if more else [])
