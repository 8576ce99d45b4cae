"""Run the conversion of one checkpoint by the builders of v0.14.0 and later, and keep what the engine is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .allocated import names
from .compiled import Communicator, DataType
from .laid_out import laid_out, types
from .told import compared

# What a quantised checkpoint holds beside its weights; only whole weights are made float64.
KEPT = (".weight_scale_inv", ".scales")


class Watched:
    """A checkpoint that gives weights in float64, and remembers what it was asked for."""

    def __init__(self, own: Any) -> None:
        self._own, self._names = own, set(own.keys())
        self._asked: set[str] = set()

    @property
    def unread(self) -> list[str]:
        """What nothing asked for."""
        return sorted(self._names - self._asked)

    def get(self, key: str, index: Any = None) -> torch.Tensor:
        """A tensor of the checkpoint."""
        self._asked.add(key)
        return _wide(key, self._own.get(key, index=index))

    def pop(self, key: str, index: Any = None) -> torch.Tensor:
        """A tensor of the checkpoint, which is not asked for again."""
        self._asked.add(key)
        return _wide(key, self._own.pop(key, index=index))

    def has(self, key: str) -> bool:
        """Whether it is there, and nobody took it."""
        return bool(self._own.has(key))

    def keys(self) -> Iterator[str]:
        """The names of what is left."""
        return iter(self._own.keys())

    def close(self) -> None:
        """Nothing is held open."""


def _wide(key: str, value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.dtype == torch.float32 and not key.endswith(KEPT) else value


def run(checkpoint: Path, *, gpus: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the engine is given, in the layout of earlier releases, and what is wrong with it; see `convert.run`.

    Raises whatever the release's own code raises.
    """
    from lmdeploy.messages import TurbomindEngineConfig
    from lmdeploy.turbomind import model_loader
    from lmdeploy.turbomind.converter import get_tm_config
    from lmdeploy.turbomind.models import base

    _unrounded()
    _model_of(checkpoint, base)
    config = TurbomindEngineConfig()
    config.devices, config.attn_tp_size = [0], gpus
    model, path, kind = get_tm_config(str(checkpoint), config)
    seen: list[Watched] = []
    own = model_loader.create_checkpoint

    def watched(*args: Any, **kwargs: Any) -> Watched:
        seen.append(Watched(own(*args, **kwargs)))
        return seen[-1]

    model_loader.create_checkpoint = watched
    communicator = Communicator()
    model_loader.ModelLoader(model, communicator, 1, path, kind, config).export()
    asked, tensors = laid_out(communicator.own.model)
    wanted = names(asked, latent=True, vocab_first=False)
    told = compared(wanted, tensors)
    dtypes = sorted(types(communicator.own.model))
    return asked, {**told, "dtypes": dtypes, "unread": seen[0].unread, "rounded": []}


def _model_of(checkpoint: Path, base: Any) -> None:
    """Import the one module that registers the architecture; the others want what no text model does."""
    from importlib import import_module

    from lmdeploy.archs import get_model_arch
    from lmdeploy.turbomind.supported_models import SUPPORTED_ARCHS

    name = SUPPORTED_ARCHS.get(get_model_arch(str(checkpoint))[0], "")
    if name and not base.INPUT_MODELS.get(name):
        import_module(f"lmdeploy.turbomind.models.{name.replace('-', '_')}")


def _unrounded() -> None:
    """Let float64 stand for the engine's 16-bit types, so that only errors of arithmetic are seen."""
    from lmdeploy.turbomind import weight_format
    from lmdeploy.turbomind.builders import _base

    own = (DataType.TYPE_BF16, DataType.TYPE_FP16)
    for kind in own:
        _base._CPP_TO_TORCH[kind] = torch.float64
        if hasattr(weight_format, "_TRIVIAL_DTYPES"):
            weight_format._TRIVIAL_DTYPES[kind] = torch.float64
    _base._TORCH_TO_CPP[torch.float64] = DataType.TYPE_BF16
