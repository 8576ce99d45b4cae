"""The CPU MLA backends of the older generations, rendered and run on the engine's own base classes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from tests.unit.templatekit import rendered

torch = pytest.importorskip("torch", reason="operators run on PyTorch, which the engine brings")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the engine's own imports
    pytest.importorskip("vllm", reason="a backend extends the engine's classes")

pytestmark = pytest.mark.filterwarnings("ignore")

# As the newest generation has them; the older ones have the same classes elsewhere.
TRAITS = {
    "attention_module": "vllm.v1.attention.backend",
    "attention_builder_module": "vllm.v1.attention.backend",
    "mla_common_module": "vllm.model_executor.layers.attention.mla_attention",
    "attention_metadata_is_a_batch": False,
}
MODULES = {
    "cpu_ops": "vllm.v1.attention.ops.cpu_mla",
    "cpu_reference": "vllm.v1.attention.ops.cpu_mla_reference",
    "cpu_own_prefill": "vllm.v1.attention.backends.mla.cpu_prefill",
}
HEADS, RANK, ROPE, NOPE, VALUE, BLOCK = 3, 24, 8, 12, 10, 16
# Two decodes, a prompt with nothing before it, one that is short for its context, one that is long.
NEW = [1, 1, 5, 7, 40]
LENGTHS = [38, 6, 5, 27, 73]


# Templates, and what else than above holds where they are used.
GENERATIONS = {
    "cpu_backend_own_prefill": {},
    "cpu_backend_own_forward": {},
    "cpu_backend_own_forward, a batch": {"attention_metadata_is_a_batch": True},
    "cpu_backend_own_order": {
        "attention_metadata_is_a_batch": True,
        "attention_builder_module": "builder_of_three",
    },
}


@pytest.fixture(params=GENERATIONS)
def backend(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    saved = dict(sys.modules)
    traits = TRAITS | GENERATIONS[request.param]
    sys.modules["builder_of_three"] = builder_of_three()
    for template, name in MODULES.items():
        rendered(f"mla/{template}", name, **traits)
    template = request.param.partition(",")[0]
    yield rendered(f"mla/{template}", "rendered_backend", **traits)
    for name in {*MODULES.values(), "rendered_backend", "builder_of_three"}:
        sys.modules.pop(name)
        sys.modules |= {name: saved[name]} if name in saved else {}


def builder_of_three() -> ModuleType:
    """The engine's builder as it was before it was told the names of its layers."""
    from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata

    M = TypeVar("M")

    class Older(AttentionMetadataBuilder[M], Generic[M]):  # type: ignore[misc]
        def __init__(self, kv_cache_spec: Any, vllm_config: Any, device: Any) -> None:
            self.kv_cache_spec = kv_cache_spec

    module = ModuleType("builder_of_three")
    vars(module).update(
        AttentionMetadataBuilder=Older, CommonAttentionMetadata=CommonAttentionMetadata
    )
    return module


class Projection(torch.nn.Module):  # type: ignore[misc]
    """kv_b_proj, as an engine's linear layer answers."""

    def __init__(self) -> None:
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod

        super().__init__()
        shape = HEADS * (NOPE + VALUE), RANK
        self.weight = torch.randn(shape, dtype=torch.float64) / RANK**0.5
        self.quant_method = UnquantizedLinearMethod()

    def forward(self, x: Any) -> tuple[Any, None]:
        return x @ self.weight.T, None


def made(backend: ModuleType) -> tuple[Any, Any]:
    """An implementation, and the builder of its metadata."""
    impl = backend.CPUMLAImpl(
        HEADS, RANK + ROPE, (NOPE + ROPE) ** -0.5, 1, None, None, "auto", None, "decoder", None,
        q_lora_rank=None, kv_lora_rank=RANK, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROPE,
        qk_head_dim=NOPE + ROPE, v_head_dim=VALUE, kv_b_proj=Projection(),
    )  # fmt: skip
    context = {"layer": SimpleNamespace(impl=impl)}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=context))
    spec = SimpleNamespace(block_size=BLOCK)
    names = [] if hasattr(backend.CPUMLAMetadataBuilder, "reorder_batch") else [["layer"]]
    words = spec, *names, config, torch.device("cpu")
    return impl, backend.CPUMLAMetadataBuilder(*words)


def attended(impl: Any, q: Any, kv_c: Any, k_pe: Any, cache: Any, metadata: Any) -> Any:
    """What the layer makes of a batch: all of it in the backend, or by its hooks."""
    output = torch.zeros(len(q), HEADS * VALUE, dtype=q.dtype)
    layer = SimpleNamespace(_k_scale=torch.ones(1))
    if hasattr(impl, "forward") and "forward" in vars(type(impl)):
        impl.process_weights_after_loading(q.dtype)
        return impl.forward(layer, q, kv_c, k_pe, cache, metadata, output=output)
    impl.do_kv_cache_update(kv_c, k_pe, cache, metadata.slot_mapping, "auto", layer._k_scale)
    first = metadata.num_decode_tokens
    batch = q[first:], kv_c[first:], k_pe[first:], cache, metadata, layer._k_scale
    impl.forward_mha(*batch, output=output[first:])
    up = impl.kv_b_proj.weight.view(HEADS, NOPE + VALUE, RANK)
    q_nope, q_pe = q[:first].split([NOPE, ROPE], dim=-1)
    absorbed = torch.einsum("bnp,npl->bnl", q_nope, up[:, :NOPE])
    latent, _ = impl.forward_mqa((absorbed, q_pe), cache, metadata, layer)
    output[:first] = torch.einsum("bnl,nvl->bnv", latent, up[:, NOPE:]).flatten(1)
    return output


def defined(q: Any, latents: Any, weight: Any, scale: float) -> Any:
    """The last positions of one request, full heads in float64: [tokens, N * V]."""
    kv = (latents[:, :RANK] @ weight.T).view(len(latents), HEADS, NOPE + VALUE)
    pe = latents[:, None, RANK:].expand(-1, HEADS, -1)
    scores = torch.einsum("qnd,knd->nqk", q, torch.cat((kv[..., :NOPE], pe), -1)) * scale
    hidden = torch.ones(len(q), len(latents)).triu(len(latents) - len(q) + 1).bool()
    p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("nqk,knv->qnv", p, kv[..., NOPE:]).flatten(1)


def test_a_mixed_batch_equals_full_head_attention(backend: ModuleType) -> None:
    torch.manual_seed(0)
    impl, builder = made(backend)
    latents = [torch.randn(n, RANK + ROPE, dtype=torch.float64) for n in LENGTHS]
    blocks = [-(-n // BLOCK) for n in LENGTHS]
    order = torch.randperm(sum(blocks) + 2)
    table = torch.zeros(len(LENGTHS), max(blocks), dtype=torch.int32)
    cache = torch.full((len(order), BLOCK, RANK + ROPE), torch.nan, dtype=torch.float64)
    starts, slots, used = [0], [], 0
    for request, (rows, count) in enumerate(zip(latents, blocks, strict=True)):
        table[request, :count] = order[used : used + count]
        used += count
        places = [int(table[request, i // BLOCK]) * BLOCK + i % BLOCK for i in range(len(rows))]
        old = len(rows) - NEW[request]
        cache.view(-1, RANK + ROPE)[places[:old]] = rows[:old]
        slots += places[old:]
        starts.append(starts[-1] + NEW[request])
    common = SimpleNamespace(
        num_reqs=len(NEW), num_actual_tokens=sum(NEW), max_query_len=max(NEW),
        query_start_loc_cpu=torch.tensor(starts), seq_lens=torch.tensor(LENGTHS),
        block_table_tensor=table, slot_mapping=torch.tensor(slots),
    )  # fmt: skip
    metadata = builder.build(0, common)
    assert (metadata.num_decodes, metadata.num_prefills) == (2, 3)
    fresh = torch.cat([rows[len(rows) - n :] for rows, n in zip(latents, NEW, strict=True)])
    q = torch.randn(sum(NEW), HEADS, NOPE + ROPE, dtype=torch.float64)
    out = attended(impl, q, fresh[:, :RANK], fresh[:, None, RANK:], cache, metadata)
    for request, (start, stop) in enumerate(pairwise(starts)):
        wanted = defined(q[start:stop], latents[request], impl.kv_b_proj.weight, impl.scale)
        torch.testing.assert_close(out[start:stop], wanted, rtol=1e-9, atol=1e-11)


def test_a_cache_that_is_quantized_is_refused(backend: ModuleType) -> None:
    words = {"kv_lora_rank": RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE}
    with pytest.raises(NotImplementedError, match="CPU_MLA keeps latents in the model's dtype"):
        backend.CPUMLAImpl(
            HEADS, RANK + ROPE, 1.0, 1, None, None, "fp8", None, "decoder", None,
            v_head_dim=VALUE, kv_b_proj=Projection(), **words,
        )  # fmt: skip


class Batch:
    """The requests of a batch: new tokens of each, and whether it decodes by now."""

    def __init__(self, tokens: list[int]) -> None:
        self.req_ids = [f"{place}" for place in range(len(tokens))]
        self.tokens = dict(zip(self.req_ids, tokens, strict=True))
        self.num_prompt_tokens = torch.full((len(tokens),), 40).numpy()
        self.num_computed_tokens_cpu = torch.tensor([40 * (n == 1) for n in tokens]).numpy()

    def swap_states(self, one: int, other: int) -> None:
        for each in (self.req_ids, self.num_computed_tokens_cpu):
            each[one], each[other] = each[other], each[one]


@pytest.mark.parametrize("backend", ["cpu_backend_own_order"], indirect=True)
def test_a_builder_that_orders_the_batch_puts_decodes_first(backend: ModuleType) -> None:
    _, builder = made(backend)
    batch = Batch([5, 1, 40, 1, 1])
    scheduled = SimpleNamespace(num_scheduled_tokens=batch.tokens)
    assert builder.reorder_batch(batch, scheduled)
    assert [batch.tokens[each] for each in batch.req_ids][:3] == [1, 1, 1]
    assert not builder.reorder_batch(batch, scheduled)
