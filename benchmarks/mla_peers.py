"""The kernels that MLA decode is measured against, taken from wheels of the package index, by hash.

`fetch` brings what is read of the wheels; nothing of them is kept in this repository. The rest runs
where torch and a GPU are.
"""

from __future__ import annotations

import lzma
import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import alone, mla_flashinfer, mla_sglang
from benchmarks.mla_call import LATENT, PAGE, ROPE, SCALE, Call
from benchmarks.wheels import Wheel

VLLM = Wheel(
    project="vllm",
    filename="vllm-0.25.1-cp38-abi3-manylinux_2_28_x86_64.whl",
    sha256="16fc7a28df1576eb6f7ca0455026551b8f9adb674c19c66059359ef3e964bd1e",
)
WHEELS = (VLLM, mla_sglang.WHEEL, mla_flashinfer.WHEEL, mla_flashinfer.FFI)
OPTIONAL = ("sglang", "flashinfer")
MEMBERS = (
    "vllm/_flashmla_C.abi3.so",
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
    "vllm/v1/attention/ops/triton_decode_attention.py",
)


def fetch(folder: Path, given: Sequence[Path] = (), without: Sequence[str] = ()) -> None:
    """The peers' files into a folder, from wheels on this disk or downloaded by their hash."""
    VLLM.take(folder, MEMBERS, given)
    if "sglang" not in without:
        mla_sglang.fetch(folder, given)
    if "flashinfer" not in without:
        mla_flashinfer.compile_into(folder, given)


class Peers:
    """The peers whose files are in a folder.

    missing: those that cannot be loaded here, and why; a peer that is not there is told, not hidden.
    """

    def __init__(self, folder: Path, without: Sequence[str] = ()) -> None:
        self.missing: dict[str, str] = {}
        self._peers: list[Any] = []
        for make in (Vllm, mla_flashinfer.FlashInfer, mla_sglang.SGLang):
            if make.__name__.lower() in without:
                continue
            try:
                self._peers.append(make(folder))
            except (ImportError, OSError, RuntimeError) as error:
                self.missing[make.__name__] = f"{type(error).__name__}: {str(error)[:200]}"

    def calls(self, mode: str, step: Any, longest: int) -> dict[str, Call]:
        """Each peer's call on a step; what is made once a step is made here, not in the call."""
        found: dict[str, Call] = {}
        for peer in self._peers:
            made = getattr(peer, mode, None)  # a peer without the mode has no such method
            found |= made(step, longest) if made else {}
        return found


class Vllm:
    """FlashMLA and FlashAttention 3 as vLLM ships them, and vLLM's Triton kernel."""

    def __init__(self, folder: Path) -> None:
        import torch

        self._torch = torch
        self._processors = torch.cuda.get_device_properties(0).multi_processor_count
        for member in MEMBERS:
            _unpacked(folder / Path(member).name)
        torch.ops.load_library(str(folder / "_flashmla_C.abi3.so"))
        torch.ops.load_library(str(folder / "_vllm_fa3_C.abi3.so"))
        self._triton = _triton_module(folder / "triton_decode_attention.py")

    def dense(self, step: Any, longest: int) -> dict[str, Call]:
        """A call of each on a step with a cache in the query's dtype."""
        return {
            "flashmla": self._flashmla(step),
            "fa3": self._fa3(step, longest),
            "triton-0.25.1": self._vllm_triton(step, longest),
        }

    def sparse(self, step: Any, _longest: int) -> dict[str, Call]:
        """A call of each that attends to lists of slots; pages of one slot are that, to FA3."""
        return {"flashmla": self._flashmla_sparse(step), "fa3": self._fa3_sparse(step)}

    def _flashmla_sparse(self, step: Any) -> Call:
        torch = self._torch
        tokens, _, heads, columns = step.q.shape
        # It takes 64 heads or 128; vLLM pads in each call, here it is done before.
        q = torch.zeros(tokens, max(64, heads), columns, dtype=step.q.dtype, device=step.q.device)
        q[:, :heads] = step.q[:, 0]
        cache, slots = step.cache.view(-1, 1, columns), step.table.unsqueeze(1)

        def call() -> tuple[Any, Any]:
            op = torch.ops._flashmla_C.sparse_prefill_fwd
            out, _, lse = op(q, cache, slots, SCALE, LATENT, None, None, None)
            return out[:, None, :heads], lse[:, None, :heads]

        return call

    def _fa3_sparse(self, step: Any) -> Call:
        torch, ops = self._torch, self._torch.ops._vllm_fa3_C
        tokens, _, heads, columns = step.q.shape
        q = step.q[:, 0]
        starts = torch.arange(tokens + 1, dtype=torch.int32, device=q.device)
        cache = step.cache.view(-1, 1, 1, columns)
        rope, latent = cache[..., LATENT:], cache[..., :LATENT]
        q_rope, q_latent = q[..., LATENT:].contiguous(), q[..., :LATENT].contiguous()
        most = step.table.shape[1]

        def call() -> tuple[Any, Any]:
            out, lse, *_ = ops.fwd(
                q_rope, rope, latent, None, None, q_latent, None, starts, None, None, None,
                step.lengths, 1, most, step.table, None, None, None, None, None, None,
                None, None, SCALE, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None,
            )  # fmt: skip
            return out.view(tokens, 1, heads, LATENT), lse.T.reshape(tokens, 1, heads)

        return call

    def _flashmla(self, step: Any) -> Call:
        op = self._torch.ops._flashmla_C.dense_decode_fwd
        cache = step.cache.unsqueeze(2)
        fixed = (step.q, cache, LATENT, step.lengths, step.table, SCALE, True)
        meta, splits = op(*fixed, None, None, None)[2:]

        def call() -> tuple[Any, Any]:
            out, lse = op(*fixed, meta, splits, None)[:2]
            return out, lse.transpose(1, 2)

        return call

    def _fa3(self, step: Any, longest: int) -> Call:
        torch, ops = self._torch, self._torch.ops._vllm_fa3_C
        batch, q_len, heads, _ = step.q.shape
        q = step.q.flatten(0, 1)
        starts = torch.arange(0, (batch + 1) * q_len, q_len, dtype=torch.int32, device=q.device)
        rope, latent = step.cache[..., LATENT:].unsqueeze(2), step.cache[..., :LATENT].unsqueeze(2)
        splits = 32  # what vLLM asks for under CUDA graphs
        plan = ops.get_scheduler_metadata(
            batch, q_len, longest, heads, 1, ROPE, LATENT, q.dtype, step.lengths, starts, None,
            None, None, None, PAGE, 0, True, -1, -1, False, splits, None, 0,
        )  # fmt: skip
        q_rope, q_latent = q[..., LATENT:].contiguous(), q[..., :LATENT].contiguous()

        def call() -> tuple[Any, Any]:
            out, lse, *_ = ops.fwd(
                q_rope, rope, latent, None, None, q_latent, None, starts, None, None, None,
                step.lengths, q_len, longest, step.table, None, None, None, None, None, None,
                None, None, SCALE, True, -1, -1, 0.0, True, plan, splits, None, 0, None, 1, 0, None,
            )  # fmt: skip
            return out.view(batch, q_len, heads, LATENT), lse.T.reshape(batch, q_len, heads)

        return call

    def _vllm_triton(self, step: Any, longest: int) -> Call:
        torch = self._torch
        batch, q_len, heads, _ = step.q.shape
        assert q_len == 1
        splits = min(_power_of_2(max(1, longest // 512)), 2 * self._processors)
        floats = {"dtype": torch.float32, "device": step.q.device}
        parts = torch.empty(batch, heads, splits, LATENT + 1, **floats)
        out = torch.zeros(batch, heads, LATENT, dtype=step.q.dtype, device=step.q.device)
        lse = torch.zeros(batch, heads, dtype=step.q.dtype, device=step.q.device)
        one = torch.ones((), **floats)
        cache = step.cache.unsqueeze(2)

        def call() -> tuple[Any, Any]:
            self._triton.decode_attention_fwd(
                step.q[:, 0], cache, cache[..., :LATENT], out, lse, step.table, step.lengths,
                parts, splits, SCALE, PAGE, k_scale=one, v_scale=one, is_mla=True,
            )  # fmt: skip
            return out[:, None], None  # its log-sum-exp is rounded to bf16

        return call


def _power_of_2(number: int) -> int:
    return 1 << math.ceil(math.log2(number))


def _unpacked(path: Path) -> None:
    packed = path.with_name(f"{path.name}.xz")
    if packed.exists() and not path.exists():
        path.write_bytes(lzma.decompress(packed.read_bytes()))


def _triton_module(path: Path) -> Any:
    """vLLM's Triton kernels, with the two modules of vLLM that they import stood in for."""
    import triton
    import triton.language as tl

    alone.stand_in("vllm")
    not_rocm = types.SimpleNamespace(is_rocm=lambda: False)
    alone.stand_in("vllm.platforms", current_platform=not_rocm)
    alone.stand_in("vllm.triton_utils", tl=tl, triton=triton)
    return alone.load(path, "vllm_triton_decode")
