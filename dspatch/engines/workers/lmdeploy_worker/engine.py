"""Start one of LMDeploy's engines in this process, and ask it by token ids."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import re
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from . import tokenizer

BLOCK = 64  # tokens of a block of the cache
SHARE = 0.05  # of the GPU's free memory that TurboMind's cache takes; small models need no more
PREFIX = "dspatch-lmdeploy-"
FOLDER = re.compile(rf"\S*/{PREFIX}\w+/model")  # as engines name a model in what they say
# Which logits an answer has: of the prompt's positions and of the steps, of the steps alone, or none.
Logits = Literal["all", "steps", "none"]


@dataclass(frozen=True)
class Asked:
    """One request: greedy without a temperature; `steps` tokens to come, whatever they are."""

    prompt: Sequence[int]
    steps: int
    logits: Logits = "none"
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass
class Answer:
    """What came of it: tokens, and logits (rows, vocab) of those positions that were asked for.

    `cached` is how many tokens of the prompt came from the cache, where the engine tells that.
    """

    tokens: list[int]
    logits: Any = None
    cached: int | None = None


class Started:
    """A running engine."""

    def __init__(self, pipe: Any, turbomind: bool) -> None:
        self.pipe = pipe
        # Pipelines of older releases are the engine of requests themselves.
        self.engine = getattr(pipe, "async_engine", pipe).engine
        self.turbomind = turbomind
        self.faulty = False
        self.vocabulary = 0
        self.sessions = count(1)
        self.tells_cached = _tells_cached(type(self.engine).__module__)

    def asked_by(self, ask: Callable[[Sequence[Asked]], list[Answer]]) -> Started:
        """The same engine, asked by way of `ask`."""
        other = copy.copy(self)
        vars(other)["ask"] = ask
        other.faulty = True
        return other

    def ask(self, asked: Sequence[Asked]) -> list[Answer]:
        """Answers to requests that come at once."""
        answers = self.generate(asked)
        self.complete(answers, asked)
        return answers

    def generate(self, asked: Sequence[Asked]) -> list[Answer]:
        """The same without the logits of prompts, which the PyTorch engine gives in requests of their own."""

        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*[self._one(one) for one in asked])

        return self._on_its_loop(all_of_them())

    def complete(self, answers: Sequence[Answer], asked: Sequence[Asked]) -> None:
        """Put the logits of prompts before those of steps, where they are yet to be asked for."""
        import torch

        wanted = [n for n, one in enumerate(asked) if one.logits == "all" and not self.turbomind]
        read = self.read([asked[number].prompt for number in wanted]) if wanted else []
        for number, rows in zip(wanted, read, strict=True):
            answers[number].logits = torch.cat([rows[:-1], answers[number].logits])

    def read(self, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """Logits at every position of prompts that come at once, each (tokens, vocab), and nothing generated."""

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*[self._read(one) for one in prompts])

        return self._on_its_loop(all_of_them())

    def ticks(self) -> int | None:
        """How often its scheduler went round so far; `None` of a release that does not tell."""
        metrics = getattr(self.engine, "get_schedule_metrics", None)
        found = metrics() if metrics else None
        return getattr(found, "scheduler_tick", None)

    def _on_its_loop(self, work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        """TurboMind is asked from any loop, the PyTorch engine from the one that it runs on."""
        if self.turbomind:
            return asyncio.run(work)
        loop = self.pipe.internal_thread.loop
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def _one(self, asked: Asked) -> Answer:
        rows = {"all": "all", "steps": "generation"}.get(asked.logits) if self.turbomind else None
        return await self._answered(asked, output_logits=rows)

    async def _read(self, prompt: Sequence[int]) -> Any:
        # TurboMind computes logits with the next token, which nobody looks at.
        asked = Asked(prompt, 1 if self.turbomind else 0, "all")
        return (await self._answered(asked, output_logits="all")).logits

    async def _answered(self, asked: Asked, **more: Any) -> Answer:
        import torch

        rows: list[Any] = []
        tokens: list[int] = []
        last = None
        by_step = not self.turbomind and asked.steps > 0 and asked.logits != "none"
        if by_step:
            more["logprobs"] = self.vocabulary
        stream = self.engine.create_instance().async_stream_infer(
            session_id=next(self.sessions),
            input_ids=list(asked.prompt),
            gen_config=settings(asked, **{k: v for k, v in more.items() if v is not None}),
            stream_output=True,
            # Of releases that keep a session's text; the others heed no such words.
            sequence_start=True,
            sequence_end=True,
        )
        async for output in stream:
            need_sound(output)
            tokens += list(output.token_ids)
            rows += [_row(one, self.vocabulary) for one in getattr(output, "logprobs", None) or ()]
            last = output
        metrics = getattr(last, "req_metrics", None)
        logits = torch.stack(rows) if by_step and rows else getattr(last, "logits", None)
        return Answer(
            tokens=tokens,
            # A copy: the buffer is the engine's.
            logits=None if logits is None else logits.detach().float().cpu().clone(),
            cached=getattr(metrics, "cached_tokens", None) if self.tells_cached else None,
        )


def _tells_cached(module: str) -> bool:
    """Whether an engine counts tokens from its cache: TurboMind before 0.15.0 leaves the field of its answers at 0."""
    compiled = getattr(sys.modules.get(module), "_tm", None)
    counted = getattr(compiled, "RequestMetrics", None)
    return counted is None or hasattr(counted, "cached_tokens")


def settings(asked: Asked, **more: Any) -> Any:
    """The request in LMDeploy's words."""
    from lmdeploy import GenerationConfig

    drawn = asked.temperature > 0
    return GenerationConfig(
        max_new_tokens=asked.steps,
        do_sample=drawn,
        # None of the likeliest is cut off by their number.
        top_k=0 if drawn else 1,
        top_p=asked.top_p,
        temperature=asked.temperature if drawn else 1.0,
        random_seed=asked.seed,
        ignore_eos=True,
        **more,
    )


def need_sound(output: Any) -> None:
    """Raise `RuntimeError` for an answer that is the engine's error."""
    name = getattr(output.status, "name", str(output.status))
    if name not in ("SUCCESS", "FINISH"):
        raise RuntimeError(f"the engine answered {name}")


def _row(found: Mapping[int, float], vocabulary: int) -> Any:
    """The logits of one step, (vocab,); NaN where there is none."""
    import torch

    row = torch.full((vocabulary,), float("nan"))
    row[torch.tensor(list(found), dtype=torch.int64)] = torch.tensor(list(found.values()))
    return row


@contextmanager
def started(
    checkpoint: str, options: Mapping[str, Any], *, prefixes: bool, **changes: Any
) -> Iterator[Started]:
    """An engine for a checkpoint without a tokenizer, stopped at the end of the block.

    With `prefixes` it caches those of prompts; `changes` are settings of a planted fault. Raises
    `RuntimeError` where another engine than the one that was asked for took the model.
    """
    from lmdeploy import pipeline

    turbomind = options["backend"] != "pytorch"
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        whole = tokenizer.beside(Path(checkpoint), Path(folder) / "model")
        pipe, it = None, None
        try:
            config = configured(options, turbomind, prefixes, **changes)
            pipe = pipeline(str(whole), backend_config=config, log_level="ERROR")
            it = Started(pipe, turbomind)
            _need_asked_for(it)
            it.vocabulary = vocabulary(whole)
            yield it
        finally:
            if it is not None:
                it.engine = None
            close = getattr(pipe, "close", None)
            if close:
                close()
            del pipe, it
            _free()


def vocabulary(checkpoint: Path) -> int:
    """How many tokens a checkpoint knows."""
    size: int = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    return size


def configured(options: Mapping[str, Any], turbomind: bool, prefixes: bool, **changes: Any) -> Any:
    """The engine's configuration, of what its release knows."""
    import lmdeploy

    longest, at_once = options["max_model_len"], options["max_num_seqs"]
    common = {
        "dtype": options["dtype"],
        "session_len": longest,
        "max_batch_size": at_once,
        "max_prefill_token_num": options["max_num_batched_tokens"],
        "enable_prefix_caching": prefixes,
        "enable_metrics": True,
        "tp": 1,
    }
    own = (
        {"cache_max_entry_count": SHARE}
        if turbomind
        else {
            "num_gpu_blocks": 2 * at_once * (longest // BLOCK + 1),
            "block_size": BLOCK,
            "eager_mode": True,
            "logprobs_mode": "raw_logits",
        }
    )
    kind = lmdeploy.TurbomindEngineConfig if turbomind else lmdeploy.PytorchEngineConfig
    known = kind.__dataclass_fields__
    return kind(**{k: v for k, v in {**common, **own, **changes}.items() if k in known})


def _need_asked_for(it: Started) -> None:
    taken = type(it.engine).__module__
    if ("turbomind" in taken) is not it.turbomind:
        asked = "TurboMind" if it.turbomind else "the PyTorch engine"
        raise RuntimeError(f"{asked} was asked for, and {taken} was started")


def _free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def facts(it: Started, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine runs with, as far as it says, and what it was asked for where it does not."""
    import lmdeploy
    import torch

    return {
        "lmdeploy": lmdeploy.__version__,
        "torch": torch.__version__,
        "backend": "turbomind" if it.turbomind else "pytorch",
        "attention": ["TurboMind" if it.turbomind else "the PyTorch engine"],
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "reads_apart": True,
        "prefix_caching": True,
        "chunked_prefill": True,
        "max_num_batched_tokens": options["max_num_batched_tokens"],
    }
