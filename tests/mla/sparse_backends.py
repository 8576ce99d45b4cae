"""Make sparse MLA backends on the classes of their releases, decode with them, and hold that to the twin.

    python sparse_backends.py [--cuda] FOLDER...

As backends.py, whose stand-ins for the rest of vLLM serve here, too; the abstract backend, what shares a batch out and
what turns places into slots are the releases' own. With --cuda on a card, in DeepSeek's dims, for kernels that are
rendered for them; then a step is also captured in a CUDA graph.
"""

from __future__ import annotations

import importlib
import inspect
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = str(int("--cuda" not in sys.argv))

import torch
import triton
from triton import language

from tests.mla import backends, cases

CUDA = "--cuda" in sys.argv
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float16)
if CUDA:
    backends.HEADS, backends.LATENT, backends.ROPE = 16, cases.LATENT, cases.ROPE
    backends.DIMS.kv_lora_rank, backends.DIMS.qk_rope_head_dim = cases.LATENT, cases.ROPE
CHOSEN, TOKENS = 128, 16
# Of each request: its tokens with the new ones, and how many of them are new.
LENGTHS, NEW = [70, 1, 130], [1, 1, 2]
PAST = SimpleNamespace(index_topk=CHOSEN)
CONFIG = SimpleNamespace(**vars(backends.CONFIG))
CONFIG.scheduler_config = SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=TOKENS)
CONFIG.model_config = SimpleNamespace(
    **vars(backends.CONFIG.model_config) | {"dtype": DTYPE},
    hf_config=PAST,
    model_arch_config=SimpleNamespace(total_num_attention_heads=backends.HEADS),
)
CONFIG.model_config.hf_text_config = SimpleNamespace(**vars(backends.DIMS), **vars(PAST))
CONFIG.parallel_config = SimpleNamespace(
    **vars(backends.CONFIG.parallel_config),
    decode_context_parallel_size=1,
    tensor_parallel_size=1,
    pcp_shard_decode_requests=False,
)
CONFIG.attention_config = SimpleNamespace(hisparse_config=None)
CONFIG.compilation_config = SimpleNamespace(
    max_cudagraph_capture_size=8,
    static_forward_context={"layer": SimpleNamespace(prefill_backend=None)},
)
KNOWN = {
    "triton": triton,
    "tl": language,
    "get_current_vllm_config": lambda: CONFIG,
    "get_current_vllm_config_or_none": lambda: CONFIG,
    "flash_attn_supports_mla": lambda: True,
    "num_compute_units": lambda *_: 4,
    "get_pcp_group": lambda: SimpleNamespace(world_size=1, rank_in_group=0),
    "np_to_pinned_tensor": torch.from_numpy,
    "PIN_MEMORY": False,
    "get_dcp_world_size_and_rank": lambda *_: (1, 0),
    "current_workspace_manager": lambda: SimpleNamespace(
        get_simultaneous=lambda *asked: [torch.empty(shape, dtype=of) for shape, of in asked]
    ),
    "cdiv": lambda of, by: -(-of // by),
    "has_flashinfer": lambda: False,
    "get_tensor_model_parallel_world_size": lambda: 1,
}


def main(folders: list[str]) -> None:
    """Check one release after another."""
    backends.KNOWN.update(KNOWN)
    if not CUDA:
        torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=4)
    for folder in map(Path, folders):
        with backends.imported(folder):
            holds(importlib.import_module("vllm.v1.attention.backends.mla.dspatch_mla_sparse"))
        print(folder.name)


def holds(ours: Any) -> None:
    """A release's backend is what its registry names, refuses what it does not serve, and decodes as the twin does."""
    if not CUDA:
        backends.small_card()
    backend = ours.DspatchMLASparseBackend
    assert named("DSPATCH_MLA_SPARSE") == f"{backend.__module__}.{backend.__name__}"
    chooses(backend)
    builder = backend.get_builder_cls()(
        backends.spec(DTYPE), ["layer"], CONFIG, torch.device(DEVICE)
    )
    chosen = torch.full((TOKENS, CHOSEN), -1, dtype=torch.int32, device=DEVICE)
    impl = implementation(backend.get_impl_cls(), chosen)
    decodes(builder, impl, LENGTHS, NEW, chosen)
    decodes(builder, impl, [3, 90], [1, 1], chosen, padding=2)
    larger(builder, impl, chosen)
    if getattr(builder, "supports_draft_decode_metadata_update", False):
        drafts(builder, impl, chosen)
    if CUDA:
        captured(builder, impl, chosen)


def named(name: str) -> str:
    """What the registry of a release says where a backend is."""
    for module in ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry"):
        registry = importlib.import_module(module)
        if hasattr(registry, "__file__"):
            return str(registry.AttentionBackendEnum[name].value)
    raise AssertionError("no registry")


def chooses(backend: Any) -> None:
    """By the release's own rules it serves Hopper and a cache in the model's dtype, and says what else it does not."""
    said = {
        (): None,
        ("device_capability", (8, 0)): "compute capability",
        ("device_capability", (10, 0)): "compute capability",
        ("kv_cache_dtype", "fp8"): "kv_cache_dtype",
        ("kv_cache_dtype", "fp8_ds_mla"): "kv_cache_dtype",
        ("use_sparse", False): "sparse",
        ("dtype", torch.float32): "dtype",
    }
    for change, words in said.items():
        reasons = refusals(backend, **dict([change] if change else []))
        assert bool(reasons) == bool(words), (change, reasons)
        assert words is None or any(words in reason for reason in reasons), (change, reasons)


def refusals(backend: Any, **changed: Any) -> list[str]:
    """What a release says against a backend for V3.2 on an H200, where something is changed."""
    asked = {
        "head_size": 576, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None,
        "use_mla": True, "has_sink": False, "use_sparse": True, "device_capability": (9, 0), "attn_type": "decoder",
    } | changed  # fmt: skip
    major, minor = asked["device_capability"]
    asked["device_capability"] = SimpleNamespace(major=major, minor=minor)
    names = inspect.signature(backend.validate_configuration).parameters
    found: list[str] = backend.validate_configuration(
        **{name: asked.get(name, False) for name in names}
    )
    return found


def implementation(impl: Any, chosen: Any) -> Any:
    """An implementation that reads a buffer of what an indexer chose."""
    given = backends.base_words() | {
        "alibi_slopes": None, "sliding_window": None, "logits_soft_cap": None, "kv_sharing_target_layer_name": None,
        "kv_b_proj": backends.Projection(), "indexer": SimpleNamespace(topk_indices_buffer=chosen),
    }  # fmt: skip
    common = [kind for kind in impl.__mro__ if "__init__" in vars(kind)]
    names = {name for kind in common for name in inspect.signature(kind).parameters}
    unknown = {"rotary_emb": backends.Unknown(), "q_proj": backends.Projection()}
    more = {name: value for name, value in unknown.items() if name in names}
    torch.set_default_dtype(DTYPE)  # as where a model is made
    made = impl(**given, **more)
    torch.set_default_dtype(torch.float32)
    return made


def asked(builder: Any, lengths: list[int], new: list[int], table: Any, padding: int = 0) -> Any:
    """What a release tells a builder of a step; padding: tokens that only fill up a captured graph."""
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    if padding:
        starts = torch.cat((starts, starts[-1:].repeat(padding)))
        table = torch.cat((table, table[:1].repeat(padding, 1)))
    seen = torch.tensor(lengths + [0] * padding, dtype=torch.int32)
    there = starts.to(DEVICE)
    given = {
        "num_reqs": len(seen), "num_actual_tokens": sum(new) + padding, "max_query_len": max(new),
        "max_seq_len": max(lengths), "query_start_loc": there, "query_start_loc_cpu": starts,
        "seq_lens": seen.to(DEVICE),
        "seq_lens_cpu": seen, "_seq_lens_cpu": seen, "num_computed_tokens_cpu": seen, "_num_computed_tokens_cpu": seen,
        "seq_lens_cpu_upper_bound": seen, "block_table_tensor": table, "slot_mapping": torch.zeros(0, device=DEVICE),
    }  # fmt: skip
    kind = sys.modules[type(builder).__module__].CommonAttentionMetadata
    return kind(**{n: given[n] for n in inspect.signature(kind).parameters if n in given})


def decodes(
    builder: Any, impl: Any, lengths: list[int], new: list[int], chosen: Any, padding: int = 0
) -> None:
    """A step, each token of it from a list of its own, is what the twin says; what fills it up is 0."""
    one = latents(lengths)
    metadata = builder.build(0, asked(builder, lengths, new, one.table, padding))
    right(impl, one, metadata, lengths, new, chosen)


def right(
    impl: Any, one: Any, metadata: Any, lengths: list[int], new: list[int], chosen: Any
) -> None:
    """What an implementation makes of built metadata is right; what only fills it up is 0."""
    tokens, count = metadata.num_actual_tokens, sum(new)
    wanted = listed(one, lengths, new, chosen)
    q = torch.cat((wanted.q, wanted.q[:1].repeat(tokens - count, 1, 1, 1)))
    judged(attended(impl, q.squeeze(1), one.cache, metadata), wanted)


def judged(out: Any, wanted: Any) -> None:
    """Of a step what the twin says, and 0 behind it."""
    count = len(wanted.q)
    truth, sums = backends.truth(wanted)
    found = cases.faults(out[:count].unsqueeze(1), sums, truth, sums)
    assert not found, found
    assert not out[count:].any()


def latents(lengths: list[int]) -> Any:
    """A cache of requests, in scattered pages."""
    return cases.step(
        lengths, heads=backends.HEADS, page=backends.PAGE, latent=backends.LATENT, rope=backends.ROPE, dtype=DTYPE,
        device=DEVICE,
    )  # fmt: skip


def listed(one: Any, lengths: list[int], new: list[int], chosen: Any) -> Any:
    """Choose for each new token among those up to itself, in no order; what the twin has to look at."""
    draw = random.Random(0)
    slots = torch.full((sum(new), CHOSEN), -1, dtype=torch.int32, device=DEVICE)
    token = 0
    for request, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for seen in range(length - count + 1, length + 1):
            places = draw.sample(range(seen), min(seen, CHOSEN))
            chosen[token] = torch.tensor(places + [-1] * (CHOSEN - len(places)))
            at = torch.tensor(places, device=DEVICE)
            pages = one.table[request, at // backends.PAGE]
            slots[token, : len(places)] = pages * backends.PAGE + at % backends.PAGE
            token += 1
    every = torch.full((token,), CHOSEN, dtype=torch.int32, device=DEVICE)
    return replace(one, q=queries(token), table=slots, lengths=every, sparse=True)


def queries(tokens: int) -> Any:
    """Queries [tokens, 1, heads, width]."""
    dims = {"heads": backends.HEADS, "latent": backends.LATENT, "rope": backends.ROPE}
    return cases.step([1] * tokens, **dims, dtype=DTYPE, device=DEVICE, seed=1).q


def hook(impl: Any) -> str:
    """The method by which a release has an implementation attend."""
    return "_forward_bf16_kv" if "_forward_bf16_kv" in vars(type(impl)) else "forward_mqa"


def attended(impl: Any, q: Any, cache: Any, metadata: Any) -> Any:
    """What an implementation makes of a step, called as its release calls it."""
    layer = SimpleNamespace(_k_scale=torch.ones(1, device=DEVICE))
    if hook(impl) == "_forward_bf16_kv":
        return impl._forward_bf16_kv(q, cache, impl.topk_indices_buffer[: len(q)], metadata)
    parts = q.split([backends.LATENT, backends.ROPE], -1)
    return impl.forward_mqa(parts, cache, metadata, layer)[0]


def larger(builder: Any, impl: Any, chosen: Any) -> None:
    """A step of more tokens than a decode step has is upstream's: its method is called, with what came."""
    one = latents([12])
    metadata = builder.build(0, asked(builder, [12], [12], one.table))
    assert len(metadata.lengths) == 0
    listed(one, [12], [12], chosen)
    with patch.object(
        type(impl).__mro__[1], hook(impl), return_value=("upstream's", None)
    ) as upstreams:
        attended(impl, queries(12).squeeze(1), one.cache, metadata)
    upstreams.assert_called_once()
    assert any(each is metadata for each in upstreams.call_args.args)


def drafts(builder: Any, impl: Any, chosen: Any) -> None:
    """After a draft's step the same metadata, brought up to date, is right for one token more."""
    one = latents([71, 2])
    step = asked(builder, [70, 1], [1, 1], one.table)
    metadata = builder.build(0, step)
    step.seq_lens += 1
    builder.update_draft_decode_metadata(metadata)
    right(impl, one, metadata, [71, 2], [1, 1], chosen)


def captured(builder: Any, impl: Any, chosen: Any) -> None:
    """A graph that was captured of one step replays another: other lengths, lists and queries in the same places."""
    one = latents([70, 1, 130])
    step = asked(builder, [70, 1, 130], [1, 1, 1], one.table)
    metadata = builder.build(0, step)
    q = queries(3).squeeze(1)
    attended(impl, q, one.cache, metadata)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attended(impl, q, one.cache, metadata)
    for lengths in ([9, 1, 128], [70, 1, 2]):
        step.seq_lens.copy_(torch.tensor(lengths))
        builder.build(0, step)
        wanted = listed(one, lengths, [1, 1, 1], chosen)
        graph.replay()
        judged(out, wanted)


if __name__ == "__main__":
    main([given for given in sys.argv[1:] if given != "--cuda"])
