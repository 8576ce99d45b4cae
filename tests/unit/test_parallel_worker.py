"""Several processes of vLLM: what surrounds them, and what a report says of each run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dspatch.conformance import oracle, parallel, small
from dspatch.engines import Options, worker
from dspatch.engines.workers.vllm_parallel_worker import running
from dspatch.errors import ProcessError

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


class Drawn:
    """An oracle whose checkpoints are there."""

    def need_whole(self, cases: list[small.Case]) -> None: ...

    def checkpoints(self, cases: list[small.Case], progress: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(given=Path("/checkpoints") / case.variant) for case in cases]


RAN = {"vllm": "1.0", "device": "cuda", "attention": ["Latent"], "seconds": {"start": 80.0}}
MEASURED = {
    "texts": 4, "equal": 3, "compared": 900, "worst": 0.2, "typical": 0.03, "weights": 41, "split": 21,
    "lost": [], "blind": [], "processes": 2, "spoiled": {"worst": 3.0, "typical": 1.0},
}  # fmt: skip


def test_a_report_tells_both_runs_of_a_model_and_goes_on_after_one_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(python: Path, package: Path, asked: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "compare" in asked:
            return MEASURED
        if asked["run"]["checkpoint"].endswith("deepseek-v2-lite"):
            raise ProcessError("it ended", why="no room")
        Path(asked["run"]["folder"]).mkdir(parents=True)
        many = asked["run"]["degree"] > 1
        return {**RAN, "heads": [16 if many else 32], "sums": ["Custom"] if many else []}

    monkeypatch.setattr(oracle, "ensure", lambda progress: Drawn())
    monkeypatch.setattr(parallel.worker, "ask", ask)
    cases = parallel.cases(["deepseek-v2-lite", "deepseek-v3"], [], 2)
    told = parallel.run(
        cases, 2, python=tmp_path / "python", out=tmp_path, options=Options(dtype="bfloat16")
    )
    assert told.facts["deepseek-v3 on 1 process"] == {
        "attention": "Latent", "heads": "32", "seconds to start": 80.0,
    }  # fmt: skip
    assert told.facts["deepseek-v3 on 2 processes"]["sums"] == "Custom"
    assert (told.facts["device"], told.facts["vllm"]) == ("cuda", "1.0")
    assert [(each.check, each.variant, each.status) for each in told.results] == [
        ("engine.start", "deepseek-v2-lite", "fail"),
        ("tp.logprobs", "deepseek-v2-lite", "not-shown"),
        ("tp.weights", "deepseek-v2-lite", "not-shown"),
        ("tp.logprobs", "deepseek-v3", "pass"),
        ("tp.weights", "deepseek-v3", "pass"),
    ]
    assert told.results[3].unit == "nats, median token of the median prompt"
    # The folder of a run that was judged goes; what it held is large.
    assert not (tmp_path / "tp-deepseek-v3").exists()
