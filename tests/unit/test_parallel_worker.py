"""Several processes of vLLM: what surrounds them, and what a report says of each run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dspatch.conformance import parallel
from dspatch.engines import Options, worker
from dspatch.engines.workers.vllm_parallel_worker import running

TELLS = """
import json, os, pathlib, sys
asked = json.loads(pathlib.Path(sys.argv[1]).read_text())
pathlib.Path(asked["target"]).write_text(json.dumps(dict(os.environ)))
"""
# What keeps NVLink's multicast off, where it would put other people's GPUs out of service.
MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")


def test_what_was_set_for_the_machine_reaches_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MULTICAST:
        monkeypatch.setenv(name, "as it was")
    made = tmp_path / "workers" / "tell_worker"
    made.mkdir(parents=True)
    (made / "__init__.py").touch()
    (made / "__main__.py").write_text(TELLS)
    told = worker.ask(Path(sys.executable), made, {}, env=parallel.environment(Options()))
    assert [told[name] for name in MULTICAST] == ["as it was"] * len(MULTICAST)
    # Processes find each other on this machine, and none is forked from one that asked for a GPU.
    assert told["NCCL_SOCKET_IFNAME"] == told["GLOO_SOCKET_IFNAME"] == "lo"
    assert told["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


class Custom:
    disabled = False


class Refused:
    disabled = True


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        ({"ca_comm": Custom(), "symm_mem_comm": Refused(), "unique_name": "tp"}, ["Custom"]),
        ({"ca_comm": None, "device": "cpu"}, []),
    ],
)
def test_only_ways_to_add_up_that_are_not_disabled_are_told(
    ways: dict[str, Any], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = ModuleType("vllm.distributed.parallel_state")
    state.get_tp_group = lambda: SimpleNamespace(device_communicator=SimpleNamespace(**ways))
    monkeypatch.setitem(sys.modules, state.__name__, state)
    assert running.sums() == found


def test_one_process_adds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = ModuleType("vllm.distributed.parallel_state")
    state.get_tp_group = lambda: SimpleNamespace(device_communicator=None, ranks=[0])
    monkeypatch.setitem(sys.modules, state.__name__, state)
    assert running.sums() == []
