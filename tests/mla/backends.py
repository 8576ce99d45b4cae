"""Make the backends of several releases on the releases' own base classes, decode with them, and hold that to the twin.

    python backends.py FOLDER...

Each folder has the sources of one release that matter, patched: the common MLA backend, Triton's, ours,
and the kernels for a small model. What else they import of vLLM is not there and stands as names without
meaning, but for the few below. Runs on a CPU through Triton's interpreter; prints the name of each folder that holds.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

from tests.mla import cases

LATENT, ROPE, HEADS, VALUE, PAGE = 64, 16, 4, 8, 64
DIMS = SimpleNamespace(
    q_lora_rank=None, kv_lora_rank=LATENT, qk_nope_head_dim=8, qk_rope_head_dim=ROPE, v_head_dim=VALUE
)  # fmt: skip
LENGTHS = [70, 1, 130]


class _Kind(type):
    """A class any of whose attributes is one more such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (Unknown,), {})


class Unknown(metaclass=_Kind):
    """What a release imports and nothing here needs: a class, a base class, a function, a decorator."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __init_subclass__(cls, **_: Any) -> None: ...

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Unknown()

    def __getattr__(self, name: str) -> Any:
        # What the release's own classes lack, they lack.
        if name.startswith("__") or type(self).__module__.startswith("vllm."):
            raise AttributeError(name)
        return Unknown()


class Builder(Unknown):
    """The base of all builders, as far as MLA's calls it."""

    def _init_reorder_batch_threshold(self, *_: Any, **__: Any) -> None: ...


class Platform(Unknown):
    """An NVIDIA card, no other platform, none of the newest."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: name in ("is_cuda", "is_cuda_alike")

    def get_device_capability(self) -> tuple[int, int]:
        """An A100's."""
        return 8, 0


CONFIG = SimpleNamespace(
    scheduler_config=SimpleNamespace(max_num_seqs=8, chunked_prefill_enabled=True),
    cache_config=SimpleNamespace(block_size=PAGE, cache_dtype="auto"),
    model_config=SimpleNamespace(
        dtype=torch.float16, max_model_len=256,
        get_num_attention_heads=lambda _: HEADS, get_head_size=lambda: LATENT + ROPE, hf_text_config=DIMS,
    ),
    parallel_config=SimpleNamespace(
        cp_kv_cache_interleave_size=1, dcp_kv_cache_interleave_size=1, prefill_context_parallel_size=1,
    ),
    compilation_config=SimpleNamespace(max_cudagraph_capture_size=8, static_forward_context={}),
    attention_config=Unknown(),
    speculative_config=None,
)  # fmt: skip
# What the base classes compute with.
KNOWN = {
    "current_platform": Platform(),
    "AttentionMetadataBuilder": Builder,
    "get_mla_dims": lambda *_: DIMS,
    "get_dcp_group": lambda: SimpleNamespace(world_size=1, rank_in_group=0),
    "get_flash_attn_version": lambda *_, **__: 3,
    "get_current_vllm_config": lambda: CONFIG,
    "has_nvidia_artifactory": lambda: False,
    "is_quantized_kv_cache": lambda dtype: dtype != "auto",
    "AttentionType": SimpleNamespace(DECODER="decoder"),
    "VLLM_BATCH_INVARIANT": False,
}


class Absent(types.ModuleType):
    """A module of the engine that is not there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return KNOWN[name] if name in KNOWN else _Kind(name, (Unknown,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of vLLM: where a folder has it, there; otherwise as names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.partition(".")[0] not in ("vllm", "flashinfer"):
            return None
        base = self.folder / name.replace(".", "/")
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                return importlib.util.spec_from_file_location(name, path)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        if spec.name.startswith("flashinfer"):
            raise ImportError(spec.name)
        return Absent(spec.name)

    def exec_module(self, module: Any) -> None: ...


class Projection:
    """A linear layer that changes nothing."""

    weight = torch.zeros(1, dtype=torch.float16)

    def __call__(self, x: Any) -> tuple[Any, None]:
        return x, None


def main(folders: list[str]) -> None:
    """Check one release after another."""
    for folder in map(Path, folders):
        with imported(folder):
            holds(importlib.import_module("vllm.v1.attention.backends.mla.dspatch_mla"))
        print(folder.name)


@contextmanager
def imported(folder: Path) -> Iterator[None]:
    """vLLM is what a folder has of it, and forgotten afterwards."""
    finder = Finder(folder)
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def holds(ours: Any) -> None:
    """A step decoded by a release's backend is what the twin says."""
    small_card()
    one = cases.step(LENGTHS, heads=HEADS, page=PAGE, latent=LATENT, rope=ROPE, dtype=torch.float16)
    backend = ours.DspatchMLABackend
    assert backend.get_name() == "DSPATCH_MLA"
    builder, impl = made(backend.get_builder_cls()), implementation(backend.get_impl_cls())
    decode = builder._build_decode(**asked(builder, one))
    metadata = SimpleNamespace(decode=decode, num_decodes=len(LENGTHS))
    out, lse = attended(impl, one, metadata)
    wanted, sums = (each.flatten(0, 1) for each in truth(one))
    if lse is None:  # this release projects in its backend
        wanted = torch.einsum("bnl,nlv->bnv", wanted, impl.W_UV.double()).flatten(1)
        out = out.reshape(wanted.shape)
    else:
        torch.testing.assert_close(lse.double(), sums, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.double(), wanted, rtol=4e-3, atol=4e-3)


def small_card() -> None:
    """Let a release's kernels take the card to be the made-up one."""
    package = sys.modules["vllm.v1.attention.ops.mla_decode"]
    package.Card.of = lambda _: package.Card(**cases.CARD)


def truth(one: Any) -> tuple[Any, Any]:
    """What the twin of a release says of a step: out and log-sum-exp."""
    reference = sys.modules["vllm.v1.attention.ops.mla_decode.reference"]
    return cases.truth(reference, one, LATENT)


def spec(dtype: Any = torch.float16) -> Any:
    """What a builder is told of the cache."""
    return SimpleNamespace(block_size=PAGE, storage_block_size=PAGE, dtype=dtype, num_kv_heads=1)


def base_words() -> dict[str, Any]:
    """What every implementation is made of, by the names of its release."""
    return {
        "num_heads": HEADS, "head_size": LATENT + ROPE, "scale": cases.SCALE, "num_kv_heads": 1,
        "kv_cache_dtype": "auto", "attn_type": "decoder", "qk_head_dim": 24, **vars(DIMS),
    }  # fmt: skip


def made(builder: Any) -> Any:
    """A builder, from what its release gives it."""
    runner = SimpleNamespace(
        vllm_config=CONFIG, device=torch.device("cpu"), block_size=PAGE, **vars(CONFIG)
    )
    given = {
        "runner": runner, "kv_cache_spec": spec(), "block_table": None, "layer_names": ["layer"],
        "vllm_config": CONFIG, "device": torch.device("cpu"),
    }  # fmt: skip
    return builder(*(given[name] for name in inspect.signature(builder).parameters))


def implementation(impl: Any) -> Any:
    """An implementation, with weights that a release projects by."""
    base = impl.__mro__[1] if impl.__mro__[1].__name__ == "TritonMLAImpl" else impl
    given = base_words() | {"rotary_emb": Unknown()}
    common = next(kind for kind in impl.__mro__ if kind.__name__ == "MLACommonBaseImpl" or (
        kind.__name__ == "MLACommonImpl" and "num_heads" in inspect.signature(kind).parameters
    ))  # fmt: skip
    named = [*inspect.signature(base).parameters, *inspect.signature(common).parameters]
    words = {name: given.get(name) for name in dict.fromkeys(named) if name != "mla_args"}
    words |= {name: Projection() for name in ("o_proj", "q_proj", "kv_b_proj") if name in words}
    positional = [words.pop(name) for name in inspect.signature(base).parameters if name in words]
    result = impl(*positional, **words)
    result.W_UV = torch.randn(HEADS, LATENT, VALUE, dtype=torch.float16) / 8
    return result


def asked(builder: Any, one: Any) -> dict[str, Any]:
    """The arguments by which a release has a decode step built."""
    starts = torch.arange(len(LENGTHS) + 1, dtype=torch.int32)
    given = {
        "input_positions": one.lengths - 1, "block_table": one.table, "block_table_tensor": one.table,
        "seq_lens": one.lengths, "seq_lens_device": one.lengths, "seq_lens_cpu": one.lengths,
        "query_start_loc_cpu": starts, "query_start_loc_device": starts, "max_seq_len": max(LENGTHS),
        "num_decode_tokens": len(LENGTHS), "dcp_tot_seq_lens_device": None, "max_query_len": 1,
    }  # fmt: skip
    common = next(k for k in type(builder).__mro__ if k.__name__ == "MLACommonMetadataBuilder")
    names = list(inspect.signature(common._build_decode).parameters)[1:]
    return {name: given[name] for name in names}


def attended(impl: Any, one: Any, metadata: Any) -> tuple[Any, Any]:
    """What an implementation makes of a step, called as its release calls it; no sums where it gives none."""
    q = one.q.flatten(0, 1)
    layer = SimpleNamespace(_k_scale=torch.ones(1))
    if any("forward_mqa" in vars(kind) for kind in type(impl).__mro__):
        out, lse = impl.forward_mqa(q, one.cache, metadata, layer)
        return out, lse
    if "layer" in inspect.signature(impl._forward_decode).parameters:
        out, lse = impl._forward_decode(q.split([LATENT, ROPE], -1), one.cache, metadata, layer)
        return out, lse
    return impl._forward_decode(*q.split([LATENT, ROPE], -1), one.cache, metadata), None


if __name__ == "__main__":
    main(sys.argv[1:])
