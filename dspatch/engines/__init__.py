"""The engines that can be put under test, each one module behind the same Protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """A `Progress` that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an engine is started.

    `reference_ops` switches every patched operator to its plain-PyTorch twin. `timeout` is in
    seconds, for all trials of one call.
    """

    dtype: str = "float32"
    max_model_len: int = 512
    max_num_batched_tokens: int = 128
    max_num_seqs: int = 8
    block_size: int | None = None
    reference_ops: bool = False
    threads: int = 2
    timeout: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run on one checkpoint.

    With `load_faults` the engine only loads the spoiled weights; otherwise it runs every prompt
    (token ids by name) for `steps` greedy tokens: alone, together, again; and the run that each of
    `hook_faults` names, under that fault.
    """

    name: str
    checkpoint: Path
    config: Mapping[str, Any]
    prompts: Mapping[str, Sequence[int]]
    steps: int
    sparse_layers: Sequence[int]
    hook_faults: Sequence[Mapping[str, str]] = ()
    load_faults: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What one trial gave: a safetensors file of tensors, and the engine's facts about itself.

    `error` is empty when the engine ran. The facts hold versions, the attention backend, the cache
    layout (`cache.bytes_per_token`), what loading reported, and seconds of each part.
    """

    trial: Trial
    tensors: Path
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> str:
        """Why the engine did not run, or an empty string."""
        return str(self.facts.get("error", ""))


class Engine(Protocol):
    """What dspatch asks of an engine; modules of this package fulfil it."""

    NAME: str

    def observe(
        self,
        python: Path,
        trials: Sequence[Trial],
        *,
        out: Path,
        options: Options,
        progress: Progress,
    ) -> list[Observed]:
        """Run the trials one after the other with `python`, each in its own folder of `out`.

        A trial that fails says so in its `error`. Raises `EngineError` when no engine is there.
        """


def get(name: str) -> Engine:
    """The engine of that name.

    Raises `UnknownEngineError`.
    """
    from dspatch.engines import vllm
    from dspatch.errors import UnknownEngineError

    known: dict[str, Engine] = {vllm.NAME: vllm}
    if name not in known:
        raise UnknownEngineError(
            f"dspatch cannot run an engine named {name!r}.", why=f"It can run: {', '.join(known)}."
        )
    return known[name]
