"""FlashInfer's MLA decode for Hopper (backend fa3), compiled ahead of time from its wheel's sources.

`compile_into` does what FlashInfer's own just-in-time build does, with its flags, for bf16 queries
and a cache in bf16 or fp8: fill in the template of the configuration, compile three files for
sm_90a, link. It needs nvcc 12.8 or newer and no GPU, and takes a minute. What comes of it is loaded
through apache-tvm-ffi, whose package (CPython 3.12) is put beside it, and is called as
BatchMLAPagedAttentionWrapper calls it.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.mla_call import LATENT, ROPE, SCALE
from benchmarks.wheels import Wheel

WHEEL = Wheel(
    project="flashinfer-python",
    filename="flashinfer_python-0.7.4-py3-none-any.whl",
    sha256="a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32",
)
FFI = Wheel(
    project="apache-tvm-ffi",
    filename="apache_tvm_ffi-0.1.15.post2-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    sha256="059eed9bfc94bcd41650fb8eefde74040a1bc7e7b1a6f0a8ff897b02b118875b",
)
NAME = "flashinfer-0.7.4"
CACHES = {"bf16": "nv_bfloat16", "fp8": "__nv_fp8_e4m3"}
_DATA = "flashinfer/data"
_PARTS = ("plan", "run", "binding")
_SOURCES = ("csrc/batch_mla_", "csrc/tvm_ffi_utils.h")
_INCLUDES = (
    "include", "cccl/cub", "cccl/libcudacxx/include", "cccl/thrust", "cutlass/include",
    "cutlass/tools/util/include", "spdlog/include",
)  # fmt: skip
_FLAGS = (
    "-std=c++17", "-use_fast_math", "-Xfatbin=-compress-all", "--compress-mode=size",
    "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16", "-DFLASHINFER_ENABLE_FP8_E4M3",
    "-DFLASHINFER_ENABLE_FP8_E5M2", "-DFLASHINFER_ENABLE_FP8_E8M0", "-DFLASHINFER_ENABLE_FP4_E2M1",
    "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", "-DNDEBUG", "-O3", "-Xcompiler=-fPIC",
    "--expt-relaxed-constexpr", "-static-global-template-stub=false",
    "-gencode=arch=compute_90a,code=sm_90a", "-w",
)  # fmt: skip
_WORKSPACE, _NUMBERS = 128 << 20, 8 << 20


def compile_into(folder: Path, given: Sequence[Path]) -> None:
    """Both modules and the package that loads them into a folder.

    Raises SystemExit where nvcc is missing or refuses.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit(
            "nvcc is not on the PATH, and FlashInfer's kernels have to be compiled: install CUDA 12.8 "
            "or newer, or leave FlashInfer out with --without flashinfer"
        )
    FFI.unpack(folder, ["tvm_ffi/", "apache_tvm_ffi-"], given)
    for part in ("3rdparty", "include", "src", "cython", "testing"):
        shutil.rmtree(folder / "tvm_ffi" / part, ignore_errors=True)
    with tempfile.TemporaryDirectory() as made:
        WHEEL.unpack(Path(made), [f"{_DATA}/{part}" for part in (*_INCLUDES, *_SOURCES)], given)
        FFI.unpack(Path(made), ["tvm_ffi/include/", "tvm_ffi/3rdparty/dlpack/include/"], given)
        for cache, kind in CACHES.items():
            _compile(nvcc, Path(made), kind, folder / f"flashinfer_{cache}.so")


def _compile(nvcc: str, made: Path, kind: str, target: Path) -> None:
    """One module, for a type of cache."""
    csrc, build = made / _DATA / "csrc", made / target.stem
    build.mkdir()
    (build / "batch_mla_sm90_config.inc").write_text(
        configuration((csrc / "batch_mla_config.jinja").read_text(), kind)
    )
    includes = [csrc, *(made / _DATA / part for part in _INCLUDES)]
    includes += [made / "tvm_ffi/include", made / "tvm_ffi/3rdparty/dlpack/include", build]
    for part in _PARTS:
        # Beside the configuration, as an include in quotes is looked for beside the file first.
        source = shutil.copy(csrc / f"batch_mla_sm90_{part}.cu", build)
        where = [f"-I{folder}" for folder in includes]
        _run([nvcc, *_FLAGS, *where, "-c", str(source), "-o", str(build / f"{part}.o")])
    objects = [str(build / f"{part}.o") for part in _PARTS]
    _run([nvcc, "-shared", "-cudart=shared", *objects, "-o", str(target)])


def configuration(template: str, kind: str) -> str:
    """FlashInfer's template of a module's types and dims, filled in."""
    facts = {
        "dtype_q": "nv_bfloat16", "dtype_kv": kind, "dtype_o": "nv_bfloat16",
        "dtype_idx": "int32_t", "head_dim_ckv": LATENT, "head_dim_kpe": ROPE,
    }  # fmt: skip
    for name, value in facts.items():
        template = template.replace(f"{{{{ {name} }}}}", str(value))
    if "{{" in template:
        raise SystemExit("FlashInfer's template asks for more than this benchmark knows of")
    return template


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise SystemExit(f"nvcc refused a source of FlashInfer:\n{last}")


class FlashInfer:
    """The modules in a folder; one plan serves every step of the same lengths, as in an engine."""

    def __init__(self, folder: Path) -> None:
        import torch

        self._torch, self._ffi = torch, _ffi(folder)
        load = self._ffi.load_module
        self._modules = {c: load(str((folder / f"flashinfer_{c}.so").resolve())) for c in CACHES}
        self._work = torch.empty(_WORKSPACE, dtype=torch.uint8, device="cuda")
        self._pinned = torch.empty(_NUMBERS, dtype=torch.uint8, pin_memory=True)
        self._plans: dict[Any, tuple[Any, Any]] = {}

    def dense(self, step: Any, _longest: int) -> dict[str, Any]:
        """Its call on a step with a cache in bf16."""
        return {NAME: self._call(step, "bf16", 1.0)}

    def fp8(self, step: Any, _longest: int) -> dict[str, Any]:
        """Its call on a step with a cache in e4m3 and one scale."""
        return {NAME: self._call(step, "fp8", float(step.scale))}

    def _call(self, step: Any, cache: str, unit: float) -> Any:
        torch = self._torch
        batch, q_len, heads, _ = step.q.shape
        module, page = self._modules[cache], step.cache.shape[1]
        plan, numbers = self._planned(step, cache)
        # It is told the type when it is compiled; fp8 travels as bytes, which every torch can hand over.
        rows = step.cache.view(torch.uint8) if cache == "fp8" else step.cache
        q = step.q.flatten(0, 1)
        out = torch.empty(*q.shape[:2], LATENT, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        place = torch.arange(step.table.shape[1], device=q.device)
        pages = step.table[place * page < step.lengths[:, None]]
        fixed = (
            self._work, numbers, plan, q[..., :LATENT], q[..., LATENT:], rows[..., :LATENT],
            rows[..., LATENT:], pages, out, lse, int(q_len > 1), heads, page, SCALE, True, unit,
            unit, None,
        )  # fmt: skip

        def call() -> tuple[Any, Any]:
            with self._ffi.use_torch_stream():
                module.run(*fixed)
            return out.view(batch, q_len, heads, LATENT), lse.view(batch, q_len, heads)

        return call

    def _planned(self, step: Any, cache: str) -> tuple[Any, Any]:
        """FlashInfer's plan of a step's lengths, made on the host, and its numbers on the device."""
        lengths = step.lengths.cpu()
        key = (cache, *step.q.shape, step.cache.shape[1], tuple(lengths.tolist()))
        if key not in self._plans:
            self._plans = {key: self._plan(step, lengths, cache)}
        return self._plans[key]

    def _plan(self, step: Any, lengths: Any, cache: str) -> tuple[Any, Any]:
        torch = self._torch
        batch, q_len, heads, _ = step.q.shape
        numbers = torch.empty(_NUMBERS, dtype=torch.uint8, device="cuda")
        queries = torch.arange(0, (batch + 1) * q_len, q_len, dtype=torch.int32)
        pages = torch.zeros(batch + 1, dtype=torch.int32)
        page = step.cache.shape[1]
        pages[1:] = ((lengths + page - 1) // page).cumsum(0)
        fixed = (
            self._work,
            numbers,
            self._pinned,
            queries,
            pages,
            lengths,
            heads,
            LATENT,
            q_len > 1,
        )
        with self._ffi.use_torch_stream():
            plan, used = self._modules[cache].plan(*fixed)
        numbers[: int(used)].copy_(self._pinned[: int(used)])
        torch.cuda.synchronize()
        return plan, numbers


def _ffi(folder: Path) -> Any:
    """apache-tvm-ffi as it is installed, or the package in the folder."""
    try:
        return importlib.import_module("tvm_ffi")
    except ImportError:
        if sys.version_info[:2] != (3, 12):
            raise ImportError(
                "apache-tvm-ffi: not installed, and the one here is CPython 3.12's"
            ) from None
    sys.path.insert(0, str(folder))
    return importlib.import_module("tvm_ffi")
