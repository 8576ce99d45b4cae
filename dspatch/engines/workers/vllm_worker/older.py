"""Start and observe vLLM's engine from before its second one (V1), which has other ways in."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def needed() -> bool:
    """Whether the vLLM that is installed has no V1, or has it for GPUs alone and is built for CPU."""
    if importlib.util.find_spec("vllm.v1") is None:
        return True
    if importlib.util.find_spec("vllm.v1.worker.cpu_worker") is not None:
        return False
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


@contextmanager
def started(checkpoint: str, options: Mapping[str, Any]) -> Iterator[Any]:
    """A running `LLM` for a checkpoint without a tokenizer, stopped at the end of the block.

    On CPU these engines neither cache prefixes nor split prompts, so a prompt must fit one pass.
    """
    from vllm import LLM

    _raw_logits()
    llm = LLM(
        model=checkpoint,
        skip_tokenizer_init=True,
        dtype=options["dtype"],
        enforce_eager=True,
        max_model_len=options["max_model_len"],
        max_num_batched_tokens=options["max_model_len"],
        max_num_seqs=options["max_num_seqs"],
        block_size=options["block_size"] or 16,
        enable_chunked_prefill=False,
        max_logprobs=1 << 30,
        seed=0,
    )
    if _before_inputs():
        llm.llm_engine.output_processor.process_prompt_logprob = _keep_prompt_logprobs
    try:
        yield llm
    finally:
        del llm
        gc.collect()
        from vllm.distributed import parallel_state

        parallel_state.destroy_model_parallel()
        # 0.4.2 keeps what it has begun, and takes it up again.
        getattr(parallel_state, "destroy_distributed_environment", lambda: None)()


def _raw_logits() -> None:
    """The sampler takes logits for log-probabilities: these engines have no mode that keeps them."""
    import torch
    from vllm.model_executor.layers import sampler

    class RawLogits:
        """PyTorch, but for the one function that would normalise the logits."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def log_softmax(self, logits: Any, **kwargs: Any) -> Any:
            return logits.float()

    vars(sampler)["torch"] = RawLogits()


def generated(llm: Any, prompts: list[list[int]], sampling: Any) -> Any:
    """What an engine of any release makes of prompts that are token ids."""
    if _before_inputs():
        return llm.generate(prompt_token_ids=prompts, sampling_params=sampling, use_tqdm=False)
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    return llm.generate(inputs, sampling, use_tqdm=False)


def _before_inputs() -> bool:
    """Whether the release is 0.4.2 or older, which takes prompts in other ways."""
    return needed() and importlib.util.find_spec("vllm.inputs") is None


def _keep_prompt_logprobs(seq_group: Any, outputs: Any) -> None:
    """What 0.4.2 does with the prompt's log-probabilities, also where no tokenizer is."""
    found = outputs[0].prompt_logprobs
    if found is not None:
        seq_group.prompt_logprobs = [*(seq_group.prompt_logprobs or [None]), *found]


def model_of(llm: Any) -> Any:
    """The live model, in this very process."""
    return _worker(llm).model_runner.model


def facts(llm: Any) -> dict[str, Any]:
    """What the engine settled on: versions, attention backend, cache layout, scheduling."""
    import torch
    import vllm

    worker = _worker(llm)
    engine = llm.llm_engine
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "attention": [worker.model_runner.attn_backend.get_name()],
        "prefix_caching": bool(engine.cache_config.enable_prefix_caching),
        "chunked_prefill": bool(engine.scheduler_config.chunked_prefill_enabled),
        "max_num_batched_tokens": engine.scheduler_config.max_num_batched_tokens,
        "cache": _cache(worker),
    }


def _cache(worker: Any) -> dict[str, Any]:
    # 0.4.2 has one engine, whose layers stand there by themselves.
    engines = worker.cpu_cache if isinstance(worker.cpu_cache[0], list) else [worker.cpu_cache]
    held = [cache for engine in engines for cache in engine]
    total = sum(cache.numel() * cache.element_size() for cache in held)
    config = worker.cache_config
    return {
        # Full heads have a first dimension of two, for keys and values.
        "kinds": ["full heads" if len(held[0]) != config.num_gpu_blocks else "latents"],
        "block_size": config.block_size,
        "layers": len(held),
        "bytes_per_token": total / (config.num_gpu_blocks * config.block_size),
    }


def _worker(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker


@contextmanager
def loading(watch: Callable[[Any], None]) -> Iterator[None]:
    """Give each model to `watch` between its construction and the loading of its weights."""
    from vllm.model_executor.model_loader import loader

    original = loader._initialize_model

    def initialize(*args: Any, **kwargs: Any) -> Any:
        model = original(*args, **kwargs)
        watch(model)
        return model

    loader._initialize_model = initialize
    try:
        yield
    finally:
        loader._initialize_model = original
