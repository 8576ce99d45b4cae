"""Kernels that MLA decode is measured against, taken from vLLM's wheel on the package index, by hash.

`fetch` brings single files of the wheel; nothing of them is kept in this repository. The rest runs
where torch and a GPU are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
import math
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WHEEL = "vllm-0.25.1-cp38-abi3-manylinux_2_28_x86_64.whl"
WHEEL_SHA256 = "16fc7a28df1576eb6f7ca0455026551b8f9adb674c19c66059359ef3e964bd1e"
_TRITON = "vllm/v1/attention/ops/triton_decode_attention.py"
MEMBERS = {
    "vllm/_flashmla_C.abi3.so": "5d28317a3d39f389c771c14afcb2b7e92bff4c40dd2f4dc835f6b9778fd08524",
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": "af90d0e144bddb52b4b790fe1e01c08d019d53021f5efbfcc245ec8b439258f2",
    _TRITON: "b9823c65eba22d76abf64dad7d7d16a950f67471c86d6cb5b3e983aaf14381ac",
}
SCALE = (128 + 64) ** -0.5
LATENT, ROPE, PAGE = 512, 64, 64

Call = Callable[[], tuple[Any, Any]]


def fetch(folder: Path, wheel: Path | None = None) -> None:
    """The peers' files into a folder, from a wheel on this disk or downloaded by its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    if wheel is None:
        from dspatch import index  # here, as the rest runs where dspatch is not

        wheel = index.download("vllm", WHEEL, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        for member, sha256 in MEMBERS.items():
            data = archive.read(member)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise SystemExit(f"{member} of {WHEEL} is not the file that was measured against")
            (folder / Path(member).name).write_bytes(data)


class Peers:
    """The peers whose files are in a folder; `calls` makes each one's call for a step."""

    def __init__(self, folder: Path) -> None:
        import torch

        self._torch = torch
        self._processors = torch.cuda.get_device_properties(0).multi_processor_count
        for member in MEMBERS:
            _unpacked(folder / Path(member).name)
        torch.ops.load_library(str(folder / "_flashmla_C.abi3.so"))
        torch.ops.load_library(str(folder / "_vllm_fa3_C.abi3.so"))
        self._triton = _triton_module(folder / "triton_decode_attention.py")

    def calls(self, step: Any, longest: int) -> dict[str, Call]:
        """A call of each peer on one step; what is made once a step is made here, not in the call."""
        return {
            "flashmla": self._flashmla(step),
            "fa3": self._fa3(step, longest),
            "triton-0.25.1": self._vllm_triton(step, longest),
        }

    def sparse_calls(self, step: Any) -> dict[str, Call]:
        """A call of each peer that attends to lists of slots; pages of one slot are that, to FA3."""
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

    for name, content in {
        "vllm": {},
        "vllm.platforms": {"current_platform": types.SimpleNamespace(is_rocm=lambda: False)},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location("vllm_triton_decode", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
