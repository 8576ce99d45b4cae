"""A small stand-in for LMDeploy: its API as far as it is asked, over the oracle's second model, on a CPU.

`STANDIN_FAULT` names what is wrong with it, `STANDIN_LACKS` settings of requests that its release does not know.
"""

import dataclasses
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.18.0"
FAULT = os.environ.get("STANDIN_FAULT", "")
LACKS = os.environ.get("STANDIN_LACKS", "").split()


@dataclasses.dataclass
class GenerationConfig:
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    temperature: float = 0.8
    ignore_eos: bool = False
    random_seed: Any = None
    logprobs: Any = None
    output_logits: Any = None

    def __post_init__(self) -> None:
        for name in LACKS:
            if getattr(self, name) is not None:
                raise TypeError(
                    f"GenerationConfig.__init__() got an unexpected keyword argument {name!r}"
                )


@dataclasses.dataclass
class TurbomindEngineConfig:
    dtype: str = "auto"
    session_len: Any = None
    max_batch_size: Any = None
    cache_max_entry_count: float = 0.8
    enable_prefix_caching: bool = False
    max_prefill_token_num: int = 8192
    enable_metrics: bool = True
    tp: int = 1


@dataclasses.dataclass
class PytorchEngineConfig:
    dtype: str = "auto"
    session_len: Any = None
    max_batch_size: Any = None
    num_gpu_blocks: int = 0
    block_size: int = 64
    enable_prefix_caching: bool = False
    max_prefill_token_num: int = 8192
    eager_mode: bool = False
    enable_metrics: bool = True
    logprobs_mode: Any = None
    tp: int = 1


def pipeline(model_path: str, backend_config: Any = None, log_level: str = "") -> Any:
    """A pipeline with an engine; the engine's module says which one it is."""
    if not (Path(model_path) / "tokenizer.json").is_file():
        raise OSError("no tokenizer")
    if FAULT == "refuses":
        raise NotImplementedError(
            "TurboMind cannot compute DeepseekV3ForCausalLM: one group. Ask for the PyTorch engine"
        )
    if FAULT == "aborts":
        os.kill(os.getpid(), signal.SIGABRT)
    from lmdeploy.pytorch.engine import Engine
    from lmdeploy.turbomind.turbomind import TurboMind

    wanted = isinstance(backend_config, TurbomindEngineConfig) and FAULT != "falls-back"
    engine = (TurboMind if wanted else Engine)(Path(model_path), backend_config)
    return Pipeline(engine)


class Pipeline:
    def __init__(self, engine: Any) -> None:
        import asyncio

        self.async_engine = SimpleNamespace(engine=engine)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.internal_thread = SimpleNamespace(loop=loop)

    def close(self) -> None:
        self.async_engine.engine.close()
        self.internal_thread.loop.call_soon_threadsafe(self.internal_thread.loop.stop)
