"""The benchmark of whole engines' throughput: what it makes and counts, without a GPU or an engine."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks import engines_throughput
from benchmarks.child import Child, latents, words

# Answers a question by twice of what it was asked, among lines that are none; ends when told to.
ECHO = """
import json, sys
print("a log", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["n"] < 0:
        break
    print("more log", flush=True)
    print("@" + json.dumps(2 * asked["n"]), flush=True)
"""


def test_a_child_answers_and_its_end_is_seen(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child("echo", [sys.executable, "-c", ECHO], {}, log)
    assert [child.ask(n=4), child.ask(n=5)] == [8, 10]
    assert child.ask(n=-1) is None
    child.process.wait()
    assert child.ask(n=6) is None
    child.close()
    assert log.read_text() == "a log\nmore log\nmore log\n"


def test_a_round_counts_the_tokens_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 1, 2 and 3 tokens, one a second, by a clock of whole seconds."""
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))

    async def ask(number: int, prompt: list[int], tokens: int) -> AsyncIterator[int]:
        for _ in range(tokens + number):
            yield 1

    made = asyncio.run(engines_throughput.round_of(ask, [[1], [2], [3]], 1))
    # 0 is the start; each request then marks its first token and its end: 1 2, 3 4, 5 6.
    assert made == {"tokens": 6, "seconds": 6.0, "first": 5.0, "decoded": 3 / 5}


def test_the_table_has_lowest_middle_and_highest() -> None:
    rounds = [{"decoded": d, "first": f} for d, f in ((10.0, 0.3), (1000.0, 0.1), (30.0, 0.2))]
    kept = {"rounds": {"a": {"1": rounds, "16": [None]}}}
    assert engines_throughput.table(kept) == [
        "| engine | 1 at once | 16 at once | 1: last first token | 16: last first token |",
        "|---|---|---|---|---|",
        "| a | 10, 30, 1,000 | — | 100, 200, 300 | — |",
    ]


def test_an_engine_gets_its_path_and_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "import os, json; print('@' + json.dumps(dict(os.environ)))"
    monkeypatch.setattr(engines_throughput, "__file__", str(tmp_path / "show.py"))
    (tmp_path / "show.py").write_text(shown)
    said = ["x", "--model", "m", "--out", str(tmp_path), "--engine", "k=pytorch:a,b:ONE=1:TWO=x=y"]
    monkeypatch.setattr(sys, "argv", said)
    started: list[Child] = []
    monkeypatch.setattr(
        engines_throughput,
        "run",
        lambda given: started.append(engines_throughput.engine(given.engine[0], given)),
    )
    engines_throughput.main()
    seen = started[0].read()
    started[0].close()
    assert (seen["PYTHONPATH"], seen["ONE"], seen["TWO"]) == ("a:b", "1", "x=y")


def test_nothing_to_do_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["engines_throughput", "--model", "m"])
    with pytest.raises(SystemExit):
        engines_throughput.main()
    assert "give --make and --config" in capsys.readouterr().err


def test_the_cache_has_room_for_so_many_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 9}')
    assert latents(str(tmp_path), 64 * 2048) == 64 * 2048 * 1152 * 9


def test_prompts_are_the_same_everywhere() -> None:
    assert words(3, 7, 1000) == words(3, 7, 1000) != words(3, 8, 1000)


def test_published_names_of_experts() -> None:
    """One file for what stands outside of layers, and one a layer; layers that predict further have none."""
    config = {
        "hidden_size": 4, "vocab_size": 9, "num_hidden_layers": 2, "num_nextn_predict_layers": 1,
        "first_k_dense_replace": 1, "intermediate_size": 5, "moe_intermediate_size": 3,
        "n_routed_experts": 2, "n_shared_experts": 1, "topk_method": "greedy",
        "num_attention_heads": 1, "kv_lora_rank": 2, "q_lora_rank": None,
        "qk_rope_head_dim": 2, "qk_nope_head_dim": 2, "v_head_dim": 2,
    }  # fmt: skip
    rest, dense, layer = engines_throughput.files(config)
    assert rest == {
        "model.embed_tokens.weight": (9, 4), "model.norm.weight": (4,), "lm_head.weight": (9, 4),
    }  # fmt: skip
    assert dense["model.layers.0.mlp.up_proj.weight"] == (5, 4)
    routed = {
        name: shape for name, shape in layer.items() if ".mlp." in name and "shared" not in name
    }
    assert json.dumps(sorted(routed.items())) == json.dumps(
        [
            *(
                (f"model.layers.1.mlp.experts.{n}.{part}_proj.weight", shape)
                for n in range(2)
                for part, shape in (("down", (4, 3)), ("gate", (3, 4)), ("up", (3, 4)))
            ),
            ("model.layers.1.mlp.gate.weight", (2, 4)),
        ]
    )
