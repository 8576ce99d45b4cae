"""The engines that can be put under test, each one module behind the same Protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

from dspatch import tomlfile
from dspatch.errors import EngineError, UnknownEngineError

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """A `Progress` that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an engine is started.

    `backend` says which one, of an engine that has several. `reference_ops` switches every patched operator to its
    plain-PyTorch twin. `timeout` is in seconds, for all trials of one call. `variables` are added to the engine's
    environment.
    """

    dtype: str = "float32"
    max_model_len: int = 512
    max_num_batched_tokens: int = 128
    max_num_seqs: int = 8
    block_size: int | None = None
    reference_ops: bool = False
    threads: int = 2
    timeout: float = 1800.0
    variables: Mapping[str, str] = field(default_factory=dict)
    backend: str = ""

    def fitting(self, context: int) -> Options:
        """The same with room for a context; a long one goes in eight chunks or so, not in hundreds."""
        return replace(
            self,
            max_model_len=max(self.max_model_len, context),
            max_num_batched_tokens=max(self.max_num_batched_tokens, context // 8),
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run on one checkpoint.

    With `load_faults` the engine only loads the spoiled weights; otherwise it runs every prompt
    (token ids by name) for `steps` greedy tokens: alone, together, again; and the run that each of
    `hook_faults` names, under that fault, and each of `start_faults`, in a start of its own. `golden` is a
    safetensors file whose `PROMPT.ids` and `PROMPT.rows` say at which positions of which texts the operations
    inside are to be recorded.
    `probes` name further runs, that ask one thing each; one that an engine does not know is not made.
    With `only_alone` each prompt is run by itself, and nothing else.
    `late` is the `prompt` and the number of `steps` of one that goes on for long, `lookup` the `prompt` of a
    long text, the positions at which answers are to be `read` there by name, and the `answer` to come.
    """

    name: str
    checkpoint: Path
    config: Mapping[str, Any]
    prompts: Mapping[str, Sequence[int]]
    steps: int
    sparse_layers: Sequence[int]
    golden: Path | None = None
    hook_faults: Sequence[Mapping[str, str]] = ()
    load_faults: Sequence[Mapping[str, Any]] = ()
    start_faults: Sequence[Mapping[str, str]] = ()
    probes: Sequence[str] = ()
    late: Mapping[str, Any] = field(default_factory=dict)
    only_alone: bool = False
    lookup: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> int:
        """How many tokens its lookup takes, with the answer."""
        return sum(len(self.lookup.get(name, ())) for name in ("prompt", "answer"))


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What one trial gave: a safetensors file of tensors, and the engine's facts about itself.

    `error` is empty when the engine ran. The facts hold versions, the attention backend, the cache
    layout (`cache.bytes_per_token`), what loading reported, and seconds of each part. An engine that
    stopped half way may name the parts that it `reached`, whose tensors are there.
    """

    trial: Trial
    tensors: Path
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> str:
        """Why the engine did not run to its end, or an empty string."""
        return str(self.facts.get("error", ""))

    @property
    def known(self) -> dict[str, Any]:
        """What a report says of the engine: its versions, and the device that it ran on."""
        told = ("vllm", "lmdeploy", "backend", "torch", "device")
        return {key: self.facts[key] for key in told if key in self.facts}

    @property
    def shown(self) -> bool:
        """Whether there is anything to measure: all of it, or what came before the error."""
        return not self.error or bool(self.facts.get("reached"))


@dataclass(frozen=True, kw_only=True)
class Parsers:
    """The names of an engine's parsers: of tool calls, and of reasoning."""

    tools: str
    reasoning: str


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


def served(name: str) -> tuple[str, ...]:
    """The releases of an engine that its worker has been run on, from served.toml."""
    path = Path(__file__).with_name("served.toml")
    return tuple(tomlfile.load(path, EngineError).data[name]["releases"])


def unserved(name: str, releases: Sequence[str], version: str) -> str:
    """Why a version may be more than the worker can run; empty for one that it has been run on."""
    if not releases or not version or version.partition("+")[0] in releases:
        return ""
    return (
        f"{name} {version} is none of those that the worker has been run on: {', '.join(releases)}"
    )


def get(name: str) -> Engine:
    """The engine of that name; one of the user's own is the module that its table names.

    Raises `UnknownEngineError`, and `EngineError` for a module that is none.
    """
    from dspatch import pins
    from dspatch.engines import lmdeploy, vllm

    known: dict[str, Engine] = {vllm.NAME: vllm, lmdeploy.NAME: lmdeploy}
    if name in known:
        return known[name]
    module = pins.engine(name).module
    if module is None:
        raise UnknownEngineError(
            f"dspatch cannot run the engine {name}.",
            why=f"it can run {', '.join(known)}, and those of your own that name a `module`",
            next="see docs/engines.md for what such a module holds",
        )
    return _own(name, module)


def _own(name: str, path: Path) -> Engine:
    """The user's module, run now and never before."""
    spec = spec_from_file_location(f"dspatch_engine_{name.replace('-', '_')}", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise EngineError(
            f"the module of the engine {name} cannot be loaded.",
            why=f"{path}: {type(error).__name__}: {error}",
            next="mend it and run the command again",
        ) from error
    if getattr(module, "NAME", None) != name or not callable(getattr(module, "observe", None)):
        raise EngineError(
            f"the module of the engine {name} is none.",
            why=f"{path} must hold NAME = {name!r} and a function `observe`",
            next="see docs/engines.md",
        )
    engine: Engine = module
    return engine
