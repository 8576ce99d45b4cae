"""Run the conversion of one checkpoint as the engine does at a start, and keep what it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import stubs
from .allocated import names
from .told import compared

WHOLE = "score_correction_bias"  # what the engine keeps in float32


@dataclass(kw_only=True)
class Written:
    """What a conversion wrote: each tensor as computed, and the dtype in which the engine got it."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    rounded: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


class Sink:
    """Stands for one allocated tensor of the engine; `type` is what the conversion asks it for."""

    def __init__(self, name: str, written: Written) -> None:
        self._name, self._written = name, written
        self.type = stubs.FLOAT32 if name.endswith(WHOLE) else ""

    def copy_from(self, tensor: torch.Tensor) -> None:
        """Note in which dtype the engine is given its tensor, and whether one in float32 lost digits."""
        self._written.dtypes[self._name] = str(tensor.dtype).removeprefix("torch.")
        if self.type and not torch.equal(tensor, self._written.tensors[self._name].float()):
            self._written.rounded.append(self._name)


class Allocated(dict[str, list[Sink]]):
    """The engine's tensors by name; one that it has not stays an error of the release's own code.

    Never empty, as the conversion writes nothing where the engine has no tensors.
    """

    def __len__(self) -> int:
        return super().__len__() or 1


class Watched:
    """The tensors of a layer of the checkpoint, which remember that they were asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        # Not copied: a patched reader multiplies a weight by its scales where it is asked for it.
        self._own = tensors
        self.asked: set[str] = set()

    def keys(self) -> Any:
        """The names."""
        return self._own.keys()

    def get(self, key: str, default: Any = None) -> Any:
        """One tensor, or what stands for none."""
        self.asked.add(key)
        return self._own.get(key, default)

    def __getitem__(self, key: str) -> torch.Tensor:
        self.asked.add(key)
        return self._own[key]


def run(
    checkpoint: Path, *, latent: bool, vocab_first: bool, gpus: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration as the engine reads it, and what was written: `tensors`, and what is wrong.

    `unread` are tensors of the checkpoint that nothing asked for, `missing` and `extra` the engine's
    that were not written and those written that it has not; `shapes` are of another size, `rounded`
    lost digits that the engine keeps. Raises whatever the release's own code raises.
    """
    from lmdeploy.messages import TurbomindEngineConfig
    from lmdeploy.turbomind.deploy.converter import get_tm_model

    config = TurbomindEngineConfig(tp=gpus)
    for size, count in (("attn_tp_size", gpus), ("attn_cp_size", 1), ("mlp_tp_size", gpus)):
        if hasattr(config, size):
            setattr(config, size, count)
    output = get_tm_model(str(checkpoint), "small", "base", config)
    asked = {**output.tm_config.to_dict()}
    wanted, written = names(asked, latent=latent, vocab_first=vocab_first), Written()
    output.tm_params = Allocated({name: [Sink(name, written)] for name in wanted})
    output.input_model.readers = _watched(output.input_model.readers, written)
    _keep(output, written)
    output.export()
    return asked, _told(wanted, written)


def asked_for(checkpoint: Path) -> str:
    """What the release starts where TurboMind is asked for: a class of configurations, or why nothing."""
    from lmdeploy.archs import autoget_backend_config
    from lmdeploy.messages import TurbomindEngineConfig

    try:
        found = autoget_backend_config(str(checkpoint), TurbomindEngineConfig())
    except RuntimeError as error:
        return f"nothing: {error}"
    return type(found[1] if isinstance(found, tuple) else found).__name__


def _watched(readers: Any, written: Written) -> Any:
    def watching() -> Iterator[tuple[int, Any]]:
        for number, reader in readers():
            reader.params = Watched(reader.params)
            yield number, reader
            written.unread += sorted(reader.params.keys() - reader.params.asked)

    return watching


def _keep(output: Any, written: Written) -> None:
    """Keep every tensor before it is rounded to the dtype of the engine."""
    own = output.export_weight

    def export(param: torch.Tensor, name: str) -> None:
        written.tensors[name] = param.detach().clone()
        own(param, name)

    output.export_weight = export


def _told(wanted: Mapping[str, tuple[int, ...]], written: Written) -> dict[str, Any]:
    return {
        **compared(wanted, written.tensors),
        "dtypes": sorted(set(written.dtypes.values())),
        "unread": written.unread,
        "rounded": written.rounded,
    }
