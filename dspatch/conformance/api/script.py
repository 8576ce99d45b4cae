"""The model that dspatch serves itself: a small DeepSeek whose greedy words are known, with a tokenizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dspatch.conformance import checkpoint, small
from dspatch.conformance.checkpoint import Checkpoint
from dspatch.conformance.oracle import Oracle
from dspatch.errors import CheckpointError
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

# Raised by hand when the worker writes other files for the same script.
GENERATION = 1


def words() -> Mapping[str, Any]:
    """Tokens, words, chat template and parsers, from script.toml."""
    return load(PACKAGE / "conformance" / "api" / "script.toml", CheckpointError).data


def make(oracle: Oracle, model: str) -> Checkpoint:
    """The checkpoint of a small model (`deepseek-v3`, `deepseek-v3/saved`), made when it is not there."""
    case = small.case(model)
    plain = checkpoint.of(case, written_with=oracle.identity)
    spoken = dict(words())
    key = checkpoint.digest(["script", GENERATION, plain.key, spoken])
    made = dataclasses.replace(plain, key=key)
    if not made.complete:
        oracle.work([{**made.task(), "kind": "serve", "script": spoken}])
    return made
