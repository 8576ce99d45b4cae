"""SGLang's Triton decode of MLA, from single files of its wheel, called as its Triton backend does.

What the files import of SGLang beyond each other is stood in for: four questions about the device.
An answer that they do not ask for is an error.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import alone
from benchmarks.mla_call import LATENT, SCALE
from benchmarks.wheels import Wheel

WHEEL = Wheel(
    project="sglang",
    filename="sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl",
    sha256="8d257a319395b322bb1be327d05e5528859358153c8563b04c0a4a3c8af164b6",
)
NAME = "sglang-0.5.23"
_AT = "sglang/kernels/ops/attention/"
# In the order in which they can be loaded.
_MODULES = ("score_mod", "metadata", "decode_attention")
# What SGLang is started with: parts of a request at least, and the context that DeepSeek-V3 has.
_LEAST_PARTS, _CONTEXT, _LEAST_TOKENS = 8, 163840, 32


def fetch(folder: Path, given: Sequence[Path]) -> None:
    """The files of the wheel into a folder."""
    WHEEL.take(folder / "sglang", [f"{_AT}{name}.py" for name in _MODULES], given)


class SGLang:
    """The kernels in a folder; the buffer of partial results is shared, as SGLang's layers share it."""

    def __init__(self, folder: Path) -> None:
        import torch

        self._torch = torch
        card = torch.cuda.get_device_properties(0)
        self._processors = card.multi_processor_count
        self._dependent = card.major >= 9
        self._parts: tuple[Any, Any] | None = None
        self.modules = _load(folder / "sglang", self._processors)
        self.most = most_parts(self._processors)

    def dense(self, step: Any, _longest: int) -> dict[str, Any]:
        """Its call on a step of one new token a request; its slots and parts are planned here."""
        torch = self._torch
        batch, q_len, heads, wide = step.q.shape
        assert q_len == 1
        where, starts = slots(step.table, step.lengths, step.cache.shape[1])
        counts = self._counts(step.lengths, heads)
        logits, part_lse = self._shared(batch, heads, step.q.device)
        out = torch.empty(batch, heads, LATENT, dtype=step.q.dtype, device=step.q.device)
        rows = step.cache.view(-1, 1, wide)
        decode = self.modules["decode_attention"].decode_attention_fwd

        def call() -> tuple[Any, Any]:
            decode(
                step.q[:, 0], rows, rows[..., :LATENT], out, starts, where, logits, part_lse,
                counts, self.most, SCALE, 1.0, 1.0, has_mla=True, use_pdl=self._dependent,
            )  # fmt: skip
            return out[:, None], None  # it keeps the log-sum-exp of parts only

        return {NAME: call}

    def _counts(self, lengths: Any, heads: int) -> Any:
        """How many parts each request is cut into, by SGLang's own kernel."""
        batch = len(lengths)
        counts = self._torch.empty(batch, dtype=self._torch.int32, device=lengths.device)
        self.modules["metadata"].get_num_kv_splits_triton[(1,)](
            counts, lengths, batch, 1, heads, 1, self.most, self._processors,
            MAX_NUM_SEQ=max(256, _power_of_2(batch)),
        )  # fmt: skip
        return counts

    def _shared(self, batch: int, heads: int, device: Any) -> tuple[Any, Any]:
        shape = (batch, heads, self.most, LATENT)
        if self._parts is None or self._parts[0].shape != shape:
            self._parts = None
            made = {"dtype": self._torch.float32, "device": device}
            self._parts = self._torch.empty(*shape, **made), self._torch.empty(*shape[:3], **made)
        return self._parts


def most_parts(processors: int) -> int:
    """The most parts of a request that SGLang makes room for."""
    fitting = _power_of_2(-(-_CONTEXT // _LEAST_TOKENS))
    return max(_LEAST_PARTS, min(_power_of_2(processors), fitting))


def slots(table: Any, lengths: Any, page: int) -> tuple[Any, Any]:
    """Every token's slot, request by request (int64), and where each request begins (int32)."""
    import torch

    token = torch.arange(table.shape[1] * page, device=table.device)
    every = table.long()[:, token // page] * page + token % page
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=table.device)
    starts[1:] = lengths.cumsum(0)
    return every[token < lengths[:, None]], starts


def _power_of_2(number: int) -> int:
    return 1 << math.ceil(math.log2(number))


def _load(folder: Path, processors: int) -> dict[str, Any]:
    alone.stand_in("sglang.srt.environ", envs=types.SimpleNamespace())
    alone.stand_in(
        "sglang.srt.utils",
        get_device_core_count=lambda _=0: processors,
        is_gfx95_supported=lambda: False,
        is_gfx1250_supported=lambda: False,
        is_hip=lambda: False,
    )
    package = _AT.replace("/", ".")
    return {name: alone.load(folder / f"{name}.py", package + name) for name in _MODULES}
