"""Start vLLM offline in this process, and say what it runs with."""

from __future__ import annotations

import gc
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import memory, older, threads


@contextmanager
def started(checkpoint: str, options: Mapping[str, Any]) -> Iterator[Any]:
    """A running `LLM` for a checkpoint without a tokenizer, stopped at the end of the block."""
    threads.leave_alone()
    if older.needed():
        with older.started(checkpoint, options) as llm:
            yield llm
        return
    from vllm import LLM

    _raw_prompt_logits()
    _empty_gpu()
    llm = None
    try:
        llm = LLM(
            model=checkpoint,
            skip_tokenizer_init=True,
            dtype=options["dtype"],
            enforce_eager=True,
            max_model_len=options["max_model_len"],
            max_num_batched_tokens=options["max_num_batched_tokens"],
            max_num_seqs=options["max_num_seqs"],
            block_size=options["block_size"],
            enable_chunked_prefill=True,
            enable_prefix_caching=True,
            max_logprobs=-1,
            logprobs_mode="raw_logits",
            seed=0,
            distributed_executor_backend=_in_this_process(),
            **memory.arguments(),
        )
        yield llm
    finally:
        del llm
        gc.collect()
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


def _empty_gpu() -> None:
    """What the engine before held is free only once nothing of it is left, here and in the allocator."""
    import torch

    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _raw_prompt_logits() -> None:
    """Prompts too give raw logits: releases that heed `logprobs_mode` for sampled tokens only call
    this function for the positions of a prompt, and for nothing else in the mode that we ask for."""
    from vllm.v1.sample.sampler import Sampler

    Sampler.compute_logprobs = staticmethod(lambda logits: logits.float())


def _in_this_process() -> Any:
    """The executor without a process of its own, as a class: some releases turn its name, on CPU,
    into that of one whose workers no hook reaches."""
    own = importlib.util.find_spec("vllm.v1.executor.uniproc_executor") is not None
    # Before it had a module of its own, one stood beside the abstract class.
    name = "uniproc_executor" if own else "abstract"
    return importlib.import_module(f"vllm.v1.executor.{name}").UniProcExecutor


def model_of(llm: Any) -> Any:
    """The live model: the engine runs in this process, so what it returns is no copy."""
    if older.needed():
        return older.model_of(llm)
    return llm.apply_model(lambda model: model)[0]


def facts(llm: Any) -> dict[str, Any]:
    """What the engine settled on: versions, attention backend, cache layout, scheduling."""
    if older.needed():
        return older.facts(llm)
    import torch
    import vllm

    config = llm.llm_engine.vllm_config
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "attention": sorted(_backends(llm)),
        "device": next(model_of(llm).parameters()).device.type,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "chunked_prefill": bool(getattr(config.scheduler_config, "enable_chunked_prefill", False)),
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "cache": _cache(llm),
    }


def _backends(llm: Any) -> set[str]:
    return {str(one.get_attn_backend().get_name()) for one in attentions_of(model_of(llm))}


def attentions_of(model: Any) -> list[Any]:
    """The modules that attend over the cache."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "get_attn_backend") and hasattr(module, "kv_cache")
    ]


def tables_of(model: Any) -> list[Any]:
    """The tables of cosines and sines by position."""
    return [m.cos_sin_cache for m in model.modules() if hasattr(m, "cos_sin_cache")]


def _cache(llm: Any) -> dict[str, Any]:
    config = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    groups = config.kv_cache_groups
    block_size = groups[0].kv_cache_spec.block_size
    # From the caches themselves: a group of layers with unlike caches shows the spec of one.
    held = [cache for module in model_of(llm).modules() for cache in caches_of(module)]
    total = sum(cache.numel() * cache.element_size() for cache in held)
    return {
        "kinds": sorted({type(group.kv_cache_spec).__name__ for group in groups}),
        "block_size": block_size,
        "layers": len(held),
        "bytes_per_token": total / (config.num_blocks * block_size),
    }


def caches_of(layer: Any) -> Iterator[Any]:
    """The parts of the KV cache that belong to this layer: none, one, or one a virtual engine."""
    held = vars(layer).get("kv_cache")
    for cache in held if isinstance(held, (list, tuple)) else [held]:
        if hasattr(cache, "zero_"):
            yield cache
