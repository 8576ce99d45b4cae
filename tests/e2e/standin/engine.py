"""What both engines of the stand-in compute: the second model, whole texts again and again."""

import hashlib
import json
import os
import signal
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lmdeploy import FAULT
from oracle_worker import twin
from safetensors.torch import load_file

Status = Enum("ResponseType", "SUCCESS FINISH INTERNAL_ENGINE_ERROR")
BLOCK = 64


def model_key(weights: dict[str, Any], config: dict[str, Any]) -> str:
    """What tells a model apart from the same one with a fault in it."""
    found = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(weights):
        found.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


class Base:
    """A model, what was read before, and the rows that a fault mixes up."""

    def __init__(self, model: Any, config: Any) -> None:
        self.config = config
        self.dtype = getattr(torch, config.dtype)
        self.model = json.loads((model / "config.json").read_text())
        weights = load_file(model / "model.safetensors")
        # In float32, of which a CPU computes many times as much; the weights are those that the dtype has.
        self.weights = {
            n: v if n.endswith("_bias") else v.to(self.dtype).float() for n, v in weights.items()
        }
        self.kept = Path(os.environ["STANDIN_KNOWN"]) / f"{model_key(self.weights, self.model)}.pt"
        self.known: dict[tuple[int, ...], Any] = (
            torch.load(self.kept) if self.kept.is_file() else {}
        )
        self.read: list[list[int]] = []
        self.left: list[int] = []
        self.ticks = self.asked = 0

    def logits(self, ids: list[int]) -> Any:
        """Of every position. A text that a known one begins with has the rows of that."""
        found = self.computed(ids)
        return found.roll(1, -1) if FAULT == "wrong-logits" else found

    def computed(self, ids: list[int]) -> Any:
        key = tuple(ids)
        for text, rows in self.known.items():
            if text[: len(key)] == key:
                return rows[: len(key)]
        self.known = {text: rows for text, rows in self.known.items() if key[: len(text)] != text}
        self.known[key] = twin.run(self.model, self.weights, ids, dtype=torch.float32).logits
        return self.known[key]

    def close(self) -> None:
        """Keep the texts for the next one that has the same weights."""
        self.kept.parent.mkdir(exist_ok=True)
        torch.save(self.known, self.kept)

    def get_schedule_metrics(self) -> Any:
        return SimpleNamespace(scheduler_tick=self.ticks)

    def create_instance(self) -> Any:
        return Instance(self)

    def cached(self, prompt: list[int]) -> int:
        """How many tokens of a prompt, in whole blocks, were read before."""
        if not self.config.enable_prefix_caching:
            return 0
        same = [
            next(
                (n for n, (a, b) in enumerate(zip(p, prompt, strict=False)) if a != b),
                min(len(p), len(prompt)),
            )
            for p in self.read
        ]
        return min(max(same, default=0), len(prompt) - 1) // BLOCK * BLOCK


class Instance:
    def __init__(self, engine: Base) -> None:
        self.engine = engine

    async def async_stream_infer(
        self, session_id: int, input_ids: list[int], gen_config: Any, **more: Any
    ) -> Any:
        it, prompt = self.engine, list(input_ids)
        it.asked += 1
        if FAULT == "dies-late" and it.asked == 5:
            os.kill(os.getpid(), signal.SIGSEGV)
        if FAULT == "answers-errors":
            yield SimpleNamespace(status=Status.INTERNAL_ENGINE_ERROR, token_ids=[])
            return
        size = it.config.max_prefill_token_num
        it.ticks += 1 if FAULT == "never-cuts" else -(-len(prompt) // size)
        it.ticks += max(gen_config.max_new_tokens - 1, 0)
        cached = it.cached(prompt)
        it.read.append(prompt)
        text = prompt[cached:] if FAULT == "prefix-lost" and cached else list(prompt)
        if it.left and gen_config.max_new_tokens:
            text, it.left = it.left, []
        rows, tokens = [], []
        for _ in range(gen_config.max_new_tokens):
            row = self.row(text, len(text) - len(prompt), gen_config)
            rows.append(row)
            tokens.append(self.next(row, gen_config, len(tokens)))
            text = [*text, tokens[-1]]
        if FAULT == "breaks-off" and len(tokens) > 2 and it.asked % 3 == 0:
            rows, tokens = rows[:2], tokens[:2]
        long, drawn = len(tokens) > 100, gen_config.do_sample
        if (FAULT == "ends-late" and long) or (FAULT == "ends-drawn" and drawn):
            rows, tokens = rows[:-1], tokens[:-1]
        if not gen_config.max_new_tokens and FAULT == "foreign-row":
            it.left = list(prompt)
        yield SimpleNamespace(
            status=Status.FINISH,
            token_ids=tokens,
            **self.shown(prompt, rows, tokens, gen_config),
            req_metrics=SimpleNamespace(cached_tokens=cached),
        )

    def row(self, text: list[int], step: int, asked: Any) -> Any:
        row = self.engine.logits(text)[-1]
        if FAULT == "nan" and len(text) > 80:
            return row * float("nan")
        return row

    def next(self, row: Any, asked: Any, step: int) -> int:
        if not asked.do_sample:
            best, order = row.nan_to_num(nan=-1e9).topk(2)
            second = FAULT == "runner-up" and best[0] - best[1] > 0.5
            return int(order[int(second)])
        seed = asked.random_seed if FAULT != "seed-unheeded" else None
        dice = torch.Generator()
        dice.manual_seed(seed + step) if seed is not None else dice.seed()
        warm = asked.temperature if FAULT != "temperature-unheeded" else 1.0
        share = (row.double() / warm).softmax(-1)
        order = share.argsort(descending=True)
        before = share[order].cumsum(0) - share[order]
        kept = torch.zeros_like(share).scatter(0, order[before < asked.top_p], 1.0)
        return int(torch.multinomial(share * kept, 1, generator=dice))

    def shown(
        self, prompt: list[int], rows: list[Any], tokens: list[int], asked: Any
    ) -> dict[str, Any]:
        if "turbomind" in type(self.engine).__module__:
            read = self.engine.logits(prompt)[:-1] if asked.output_logits == "all" else None
            both = (
                [read, *[row[None] for row in rows]]
                if read is not None
                else [row[None] for row in rows]
            )
            return {"logits": torch.cat(both) if asked.output_logits else None, "logprobs": None}
        read = (
            self.engine.logits(prompt) if asked.output_logits and not asked.max_new_tokens else None
        )
        told = [dict(enumerate(row.tolist())) for row in rows] if asked.logprobs else None
        return {"logits": read, "logprobs": told}
