"""What a conversion asks of CUDA and of the engine's compiled part, stubbed one by one, and nothing else."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transformers

# Packages whose `__init__` starts servers' and engines' imports; their modules are the wheel's own.
PACKAGES = ("lmdeploy", "lmdeploy.turbomind")
MODELS = (
    "lmdeploy.turbomind.models"  # the package of builders' models, each of which is imported alone
)
STUBBED = (
    "Tensor.cuda: tensors stay where they are",
    "cuda.is_bf16_supported, get_device_capability, get_device_properties: a card of capability 9.0",
    "cuda.current_device: 0, cuda.device_count: 1, version.cuda: 12.8",
    "cuda.empty_cache: nothing",
    "transformers.AutoTokenizer: one of as many words as config.json says, as small checkpoints have none",
    "lmdeploy and lmdeploy.turbomind: packages without their __init__, which load the engine",
    "_turbomind: the names of two types of tensors and of a map, which is all that conversion asks it for",
)
BUILDERS = (
    *STUBBED[:-1],
    "cuda.is_available: yes, cuda.device: nothing to enter",
    "lmdeploy.turbomind.models: a package without its __init__, which imports vision models",
    "_turbomind: structures by their fields, modules by their children and parameters, one plan for all weights",
    "16-bit types: float64 stands for them, so that only errors of arithmetic show",
)

FLOAT32, FLOAT16 = "TYPE_FP32", "TYPE_FP16"


def install(*, builders: bool) -> None:
    """Put the stubs in place, of a release that converts by builders or of one before them."""
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
    card: Any = SimpleNamespace(major=9, minor=0)
    torch.cuda.get_device_properties = lambda *args, **kwargs: card
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1
    torch.version.cuda = "12.8"
    torch.cuda.empty_cache = lambda: None
    transformers.AutoTokenizer.from_pretrained = _words
    engine = _engine(builders)
    sys.modules["_turbomind"] = engine
    folder = _folder()
    for name in (*PACKAGES, MODELS) if builders else PACKAGES:
        package: Any = ModuleType(name)
        package.__file__ = str(folder / "__init__.py")
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        package._tm, package.is_available = engine, lambda: True
        sys.modules[name] = package
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, package)


def _engine(builders: bool) -> Any:
    if builders:
        from .compiled import compiled

        torch.cuda.is_available = lambda: True
        nowhere: Any = contextlib.nullcontext
        torch.cuda.device = nowhere
        return compiled()
    engine: Any = ModuleType("_turbomind")
    engine.DataType = SimpleNamespace(TYPE_FP32=FLOAT32, TYPE_FP16=FLOAT16)
    engine.TensorMap = dict
    return engine


def _words(path: str, **given: Any) -> range:
    config = json.loads((Path(path) / "config.json").read_text())
    return range(config["vocab_size"])


def _folder() -> Path:
    found = importlib.util.find_spec("lmdeploy")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'lmdeploy'")
    return Path(next(iter(found.submodule_search_locations)))
