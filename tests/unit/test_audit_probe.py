"""Probes see planted faults by their syntax, say where, and say unknown where they cannot see."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from dspatch.audit import probe, question
from dspatch.traits import Trait

ROUTER = b'''\
"""A router."""
import torch

MODELS = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "DeepseekForCausalLM": ("deepseek", "DeepseekForCausalLM"),
}
BLOCKS = [16, 32, "auto"]
NAMES = frozenset({"fp8", "bf16"})


class Router:
    scale = 1.0

    def __init__(self, config, *, groups=1):
        if config.method == "noaux":
            self.bias = torch.empty(8)
        self.groups = groups

    def select(self, logits, bias):
        scores = logits.sigmoid() + bias
        return scores.topk(8)
'''
FILES = {
    "router.py": ROUTER,
    "old.py": b"print 'two'\n",
    "kernel.cpp": b"int64_t offset = row * stride;\nreturn offset;\n",
    "binary.py": b"\x00\xff",
    "escape.py": b"PATTERN = '\\d'\n",
}


class Source:
    version: str | None = "0.10.1"

    def read(self, path: str) -> bytes | None:
        if path == "locked.py":
            raise PermissionError(13, "Permission denied")
        return FILES.get(path)

    def beyond(self, path: str) -> bool:
        return path.startswith("csrc/")


TRAITS = {
    "has_router": Trait(name="has_router", what="w", question={"file": "router.py", "symbol": "Router"}),
    "where": Trait(
        name="where", what="w",
        question={"first_of": [{"value": "a", "file": "a.py"}, {"value": "r", "file": "router.py"}]},
    ),
}  # fmt: skip


def ask(**asked: Any) -> probe.Answer:
    wanted = {key.replace("_", "-"): value for key, value in asked.items()}
    assert not list(question.faults(wanted, TRAITS))
    return probe.ask(wanted, Source(), TRAITS)


@pytest.mark.parametrize(
    ("asked", "state", "line"),
    [
        ({"file": "router.py"}, "yes", 0),
        ({"file": "gone.py"}, "no", 0),
        ({"file": ["gone.py", "router.py"], "symbol": "Router"}, "yes", 12),
        ({"file": ["gone.py", "lost.py"]}, "no", 0),
        ({"file": "router.py", "symbol": "Router.select"}, "yes", 20),
        ({"file": "router.py", "symbol": "Router.choose"}, "no", 0),
        ({"file": "router.py", "symbol": "MODELS.DeepseekForCausalLM"}, "yes", 6),
        ({"file": "router.py", "symbol": "Router", "absent": "choose"}, "yes", 12),
        ({"file": "router.py", "symbol": "Router", "absent": "select"}, "no", 20),
        ({"file": "router.py", "absent": "Router.choose"}, "yes", 0),
        ({"file": "gone.py", "absent": "Router"}, "no", 0),
        ({"file": "router.py", "contains": "logits.sigmoid() + bias"}, "yes", 21),
        ({"file": "router.py", "symbol": "Router.__init__", "contains": "logits.sigmoid() + bias"}, "no", 15),
        ({"file": "router.py", "contains": "if config.method == 'noaux': ..."}, "yes", 16),
        ({"file": "router.py", "symbol": "Router.select", "lacks": "float32"}, "yes", 20),
        ({"file": "router.py", "symbol": "Router.select", "lacks": "scores.topk(8)"}, "no", 22),
        ({"file": "router.py", "symbol": "Router.choose", "lacks": "float32"}, "no", 0),
        ({"file": "router.py", "symbol": "Router.select", "parameter": "bias"}, "yes", 20),
        ({"file": "router.py", "symbol": "Router", "parameter": "groups"}, "yes", 12),
        ({"file": "router.py", "symbol": "Router.select", "no_parameter": "groups"}, "yes", 20),
        ({"file": "router.py", "symbol": "Router.select", "no_parameter": "bias"}, "no", 20),
        ({"file": "router.py", "symbol": "MODELS", "entry": "LlamaForCausalLM"}, "yes", 5),
        ({"file": "router.py", "symbol": "MODELS", "entry": "DeepseekV3ForCausalLM"}, "no", 4),
        ({"file": "router.py", "symbol": "MODELS", "no_entry": "DeepseekV3ForCausalLM"}, "yes", 4),
        ({"file": "router.py", "symbol": "MODELS", "entry": 'LlamaForCausalLM = ("llama", ...)'}, "yes", 5),
        ({"file": "router.py", "symbol": "MODELS", "entry": 'LlamaForCausalLM = ("opt", ...)'}, "no", 4),
        ({"file": "router.py", "symbol": "BLOCKS", "entry": "16"}, "yes", 8),
        ({"file": "router.py", "symbol": "NAMES", "entry": "fp8"}, "yes", 9),
        ({"file": "kernel.cpp", "regex": r"int64_t offset = row"}, "yes", 1),
        ({"file": "kernel.cpp", "regex": r"^return int32"}, "no", 0),
        ({"file": "kernel.cpp", "no_regex": r"int32"}, "yes", 0),
        ({"file": "kernel.cpp", "no_regex": r"^return"}, "no", 2),
        ({"file": "router.py", "sha256": hashlib.sha256(ROUTER).hexdigest()}, "yes", 0),
        ({"file": "router.py", "sha256": "0" * 64}, "no", 0),
        ({"version": ">=0.10,<0.11"}, "yes", 0),
        ({"version": "<0.10"}, "no", 0),
        ({"trait": "has_router"}, "yes", 12),
        ({"trait": "where"}, "yes", 0),
        ({"not": {"file": "router.py", "symbol": "Router.choose"}}, "yes", 0),
        # What cannot be seen is unknown, whichever way it is asked.
        ({"file": "csrc/kernel.cpp"}, "unknown", 0),
        ({"file": "csrc/kernel.cpp", "no_regex": "int32"}, "unknown", 0),
        ({"not": {"file": "csrc/kernel.cpp"}}, "unknown", 0),
        ({"file": "old.py", "contains": "print('two')"}, "unknown", 0),
        ({"file": "old.py", "lacks": "print('two')"}, "unknown", 0),
        ({"file": "old.py", "regex": "two"}, "yes", 1),
        ({"file": "binary.py", "symbol": "x"}, "unknown", 0),
        ({"file": "locked.py"}, "unknown", 0),
        ({"file": "escape.py", "symbol": "PATTERN"}, "yes", 1),
    ],
)  # fmt: skip
def test_a_planted_fault_is_seen_where_it_is(asked: dict[str, Any], state: str, line: int) -> None:
    answer = ask(**asked)
    assert answer.state == state
    assert (answer.evidence[0].line if answer.evidence else 0) == line
    assert answer.why if state == "unknown" else answer.evidence


def test_a_version_that_nobody_knows_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (None, "main"):
        monkeypatch.setattr(Source, "version", version)
        assert ask(version=">=0.1").state == "unknown"


def test_all_keys_of_a_question_must_hold() -> None:
    assert (
        ask(file="router.py", symbol="Router", absent="choose", parameter="groups").state == "yes"
    )
    assert ask(file="router.py", symbol="Router", absent="choose", parameter="other").state == "no"
    assert ask(file="router.py", regex="sigmoid", contains="logits.tanh()").state == "no"
    assert ask(file="router.py", version="<0.1").state == "no"


def test_every_file_of_a_question_is_known_beforehand() -> None:
    asked = {
        "all": [{"file": "a"}, {"any": [{"file": ["b", "c"]}, {"trait": "where"}]}],
        "not": {"file": "d"},
    }
    assert set(probe.files(asked, TRAITS)) == {"a", "b", "c", "d", "a.py", "router.py"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "asks for something"),
        ([], "asks for something"),
        ({"symbol": "X"}, "needs a `file`"),
        ({"file": "a", "contians": "x"}, "unknown key `contians`"),
        ({"file": "a", "contains": "if x"}, "`contains` cannot be read"),
        ({"file": "a", "contains": ""}, "`contains` must be text"),
        ({"file": "a", "regex": "("}, "`regex` cannot be read"),
        ({"file": "a", "sha256": "abc"}, "64 hexadecimal digits"),
        ({"file": "a", "entry": "KEY = ("}, "`entry` cannot be read"),
        ({"version": "about 0.8"}, "`version` cannot be read"),
        ({"trait": "nothing"}, "no trait of this engine"),
        ({"any": []}, "must be a list of questions"),
        ({"all": [{"file": 3}]}, "`file` must be a path"),
        ({"not": {}}, "asks for something"),
        ({"file": []}, "`file` must be a path"),
    ],
)
def test_a_question_that_nothing_answers_is_refused(asked: Any, told: str) -> None:
    assert any(told in fault for fault in question.faults(asked, TRAITS))
