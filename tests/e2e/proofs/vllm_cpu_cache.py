"""What the CPU cache of an old vLLM takes for published models, as the engine sizes and allocates it.

    python vllm_cpu_cache.py deepseek-v3.json ...

Run in the environment of a wheel for CPU whose engine is the one before V1 (0.5.1 to 0.8.5). Each
file is a published config.json;
no weights are needed. Prints one JSON object a file: bytes a token in bfloat16 by the engine's own
sizing, those of 64 blocks that it allocated, and the name of the cache's backend.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig
from vllm.worker.cpu_worker import CPUCacheEngine

BLOCK, BLOCKS = 16, 64


def told(config: Path) -> dict[str, Any]:
    """The cache of one model."""
    with tempfile.TemporaryDirectory() as folder:
        held = json.loads(config.read_text())
        held.pop("auto_map", None)  # code beside the checkpoint, which is not here
        Path(folder, "config.json").write_text(json.dumps(held))
        # 0.8.5 asks for the task, 0.6.0 knows no such thing.
        tasked = "task" in inspect.signature(ModelConfig).parameters
        model = ModelConfig(
            **({"task": "generate"} if tasked else {}),
            model=folder,
            tokenizer=folder,
            tokenizer_mode="auto",
            trust_remote_code=False,
            dtype="bfloat16",
            seed=0,
            skip_tokenizer_init=True,
            max_model_len=BLOCK * BLOCKS,
        )
    parallel = ParallelConfig(pipeline_parallel_size=1, tensor_parallel_size=1)
    cache = CacheConfig(
        block_size=BLOCK, gpu_memory_utilization=0.9, swap_space=0, cache_dtype="auto"
    )
    cache.num_gpu_blocks, cache.num_cpu_blocks = BLOCKS, 0
    sized = CPUCacheEngine.get_cache_block_size(BLOCK, "auto", model, parallel)
    engine = CPUCacheEngine(cache, model, parallel, DeviceConfig("cpu"))
    allocated = sum(each.numel() * each.element_size() for each in engine.cpu_cache)
    return {
        "config": config.name,
        "sized": sized / BLOCK,
        "allocated": allocated / (BLOCKS * BLOCK),
        "backend": engine.attn_backend.get_name(),
    }


for name in sys.argv[1:]:
    print(json.dumps(told(Path(name))))
