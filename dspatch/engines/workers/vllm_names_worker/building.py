"""Make vLLM's models of a config without storage: whole ones, pipeline stages of them, and what drafts for them."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

# The engine remembers by id() what a stage lacks; without storage it costs nothing to keep models.
HELD: list[Any] = []
LENGTH = 512  # tokens; nothing of a name depends on it


class Nowhere(TorchFunctionMode):  # type: ignore[misc]
    """Every new tensor has sizes and no storage, whatever device is named for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, on the device `meta` where it makes a tensor."""
        kwargs = dict(kwargs or {})
        if func in _device_constructors():
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def staged() -> bool:
    """Whether the vLLM that is installed divides models among stages of a pipeline."""
    from vllm.distributed import parallel_state

    return hasattr(parallel_state, "get_pp_group")


def drafts() -> bool:
    """Whether the vLLM that is installed has a model for DeepSeek's multi-token prediction."""
    return importlib.util.find_spec("vllm.model_executor.models.deepseek_mtp") is not None


@contextmanager
def fused() -> Iterator[bool]:
    """Shared experts among the routed ones, as ROCm's kernels take them; whether the release knows of that."""
    name, module = "is_fusion_moe_shared_experts_enabled", "vllm._aiter_ops"
    known = importlib.util.find_spec(module) is not None
    switches = importlib.import_module(module).rocm_aiter_ops if known else None
    if not hasattr(switches, name):
        yield False
        return
    before = vars(switches)[name]
    setattr(switches, name, classmethod(lambda own: True))
    try:
        yield True
    finally:
        setattr(switches, name, before)


def _afresh() -> None:
    """Forget the table of ROCm's shared experts, which is made once a process, for one model."""
    for module in list(sys.modules.values()):
        if "aiter_topK_meta_data" in getattr(module, "__dict__", {}):
            vars(module)["aiter_topK_meta_data"] = None


def model(folder: str, *, draft: bool = False, stage: tuple[int, int] = (0, 1)) -> Any:
    """The engine's model of `folder`/config.json: the main one or the draft's, or one of so many stages."""
    # Which kernels a processor has decides no name; these ask for tiles before they make parameters.
    torch.cpu._is_amx_tile_supported = lambda: True
    _let_fp8()
    _afresh()
    config = _arguments(folder, draft).create_engine_config()
    chosen = config.speculative_config.draft_model_config if draft else config.model_config
    with _current(config), _among(stage), Nowhere(), _dtype(config.model_config.dtype):
        HELD.append(_initialized(config, chosen))
    return HELD[-1]


def _let_fp8() -> None:
    """Our backend for CPU makes no layer whose FP8 weights it could not absorb; their names are asked all the same."""
    try:
        backend = importlib.import_module("vllm.v1.attention.backends.mla.cpu_mla")
    except ModuleNotFoundError:
        return
    if hasattr(backend, "Fp8LinearMethod"):
        vars(backend)["Fp8LinearMethod"] = type("NoMethod", (), {})


@contextmanager
def _current(config: Any) -> Iterator[None]:
    """The config as the one that models of newer releases ask for while they are made."""
    from vllm import config as configs

    if not hasattr(configs, "set_current_vllm_config"):
        yield
        return
    with configs.set_current_vllm_config(config):
        yield


def _initialized(config: Any, chosen: Any) -> Any:
    """The model of a config, as the loader of the release makes it: three forms of one function."""
    utils = importlib.import_module("vllm.model_executor.model_loader.utils")
    if hasattr(utils, "initialize_model"):
        return utils.initialize_model(vllm_config=config, model_config=chosen)
    make = importlib.import_module("vllm.model_executor.model_loader.loader")._initialize_model
    wanted = inspect.signature(make).parameters
    if "vllm_config" in wanted:
        whole = copy.copy(config)
        whole.model_config = chosen
        return make(vllm_config=whole)
    return make(**{name: getattr(config, name, None) for name in wanted})


def _arguments(folder: str, draft: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    own = {"method": "deepseek_mtp", "num_speculative_tokens": 1}
    return EngineArgs(
        model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True,
        dtype="bfloat16", max_model_len=LENGTH, **({"speculative_config": own} if draft else {}),
    )  # fmt: skip


@contextmanager
def _dtype(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _among(stage: tuple[int, int]) -> Iterator[None]:
    """One process that takes itself for this stage of so many; it never talks to the others."""
    from vllm.distributed import parallel_state

    _alone(parallel_state)
    own, count = stage
    if count == 1:
        yield
        return
    group: Any = parallel_state.get_pp_group()
    told = {"rank": own, "rank_in_group": own, "world_size": count, "ranks": list(range(count))}
    before = {name: getattr(group, name) for name in told if name in vars(group)}
    vars(group).update({name: told[name] for name in before})
    try:
        yield
    finally:
        vars(group).update(before)


def _alone(parallel_state: Any) -> None:
    if parallel_state.model_parallel_is_initialized():
        return
    place = f"file://{tempfile.mkdtemp(prefix='dspatch-names-')}/store"
    begin: Callable[..., None] = parallel_state.init_distributed_environment
    begin(1, 0, place, 0, "gloo")
    parallel_state.initialize_model_parallel(1, 1)
