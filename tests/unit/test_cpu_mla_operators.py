"""The MLA operators that the series adds to the engine, rendered and run on plain PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.templatekit import TEMPLATES, rendered

torch = pytest.importorskip("torch", reason="operators run on PyTorch, which the engine brings")

Tensor = Any


@pytest.fixture(scope="module")
def ops() -> Iterator[ModuleType]:
    module = rendered("mla/cpu_ops", "rendered_cpu_ops")
    yield module
    del sys.modules[module.__name__]


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    module = rendered("mla/cpu_reference", "rendered_cpu_reference")
    yield module
    del sys.modules[module.__name__]


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Head geometry; the defaults are odd on purpose."""

    heads: int = 6
    rank: int = 24
    rope: int = 8
    nope: int = 12
    value: int = 10

    @property
    def row(self) -> int:
        return self.rank + self.rope

    @property
    def scale(self) -> float:
        return float((self.nope + self.rope) ** -0.5)


GEOMETRIES = [
    Dims(),
    Dims(heads=1, rank=7, rope=2, nope=3, value=5),
    Dims(heads=3, rank=16, rope=4, nope=2, value=20),  # values wider than keys
    Dims(heads=16, rank=512, rope=64, nope=128, value=128),
]


@dataclass(frozen=True, kw_only=True)
class Paged:
    """A cache whose pages are scattered, every row of it that nobody wrote is NaN."""

    cache: Tensor
    table: Tensor
    latents: list[Tensor]  # the same rows, in order, per request


def paged(dims: Dims, lengths: list[int], block_size: int, dtype: Any = None) -> Paged:
    dtype = dtype or torch.float64
    blocks = [-(-n // block_size) for n in lengths]
    order = torch.randperm(sum(blocks) + 3)
    cache = torch.full((len(order), block_size, dims.row), torch.nan, dtype=dtype)
    table = torch.zeros(len(lengths), max([*blocks, 1]), dtype=torch.int32)
    latents = [torch.randn(n, dims.row, dtype=torch.float64).to(dtype) for n in lengths]
    used = 0
    for request, (rows, count) in enumerate(zip(latents, blocks, strict=True)):
        for block in range(count):
            number = int(order[used])
            used += 1
            piece = rows[block * block_size : (block + 1) * block_size]
            table[request, block] = number
            cache[number, : len(piece)] = piece
    return Paged(cache=cache, table=table, latents=latents)


def weights(dims: Dims, dtype: Any = None) -> Tensor:
    shape = dims.heads * (dims.nope + dims.value), dims.rank
    return (torch.randn(shape, dtype=torch.float64) / dims.rank**0.5).to(dtype or torch.float64)


def absorbed(dims: Dims, q: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The query over latents [B, N, L + R], and W_UV [N, V, L]."""
    up = weight.view(dims.heads, dims.nope + dims.value, dims.rank)
    q_nope, q_pe = q.split([dims.nope, dims.rope], dim=-1)
    q_latent = torch.einsum("bnp,npl->bnl", q_nope, up[:, : dims.nope])
    return torch.cat((q_latent, q_pe), dim=-1), up[:, dims.nope :]


def full_heads(dims: Dims, q: Tensor, latents: Tensor, weight: Tensor) -> Tensor:
    """The definition, in fp64: expand every latent, then one query [N, P + R] over all of them."""
    kv_c, k_pe = latents.double().split([dims.rank, dims.rope], dim=-1)
    kv = torch.einsum("tl,ncl->tnc", kv_c, weight.double().view(dims.heads, -1, dims.rank))
    k_nope, v = kv.split([dims.nope, dims.value], dim=-1)
    k = torch.cat((k_nope, k_pe[:, None].expand(-1, dims.heads, -1)), dim=-1)
    p = torch.softmax(torch.einsum("nd,tnd->nt", q.double(), k) * dims.scale, dim=-1)
    return torch.einsum("nt,tnv->nv", p, v)


LENGTHS = [
    [1],
    [0, 1, 0],
    [5, 300, 1, 17, 64, 65],
    [1500, 3, 1400],
    [4097],
    [0],
    [],
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 32, 128])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_decode_equals_full_head_attention(
    ops: ModuleType, lengths: list[int], block_size: int, threads: int
) -> None:
    torch.manual_seed(len(lengths) * block_size + threads)
    check_decode(ops, Dims(), lengths, block_size, threads)


@pytest.mark.parametrize("dims", GEOMETRIES, ids=str)
def test_decode_takes_any_head_geometry(ops: ModuleType, dims: Dims) -> None:
    torch.manual_seed(0)
    check_decode(ops, dims, [70, 600, 2], block_size=16, threads=2)


def check_decode(
    ops: ModuleType, dims: Dims, lengths: list[int], block_size: int, threads: int
) -> None:
    pages, weight = paged(dims, lengths, block_size), weights(dims)
    q = torch.randn(len(lengths), dims.heads, dims.nope + dims.rope, dtype=torch.float64)
    q_latent, w_uv = absorbed(dims, q, weight)
    groups = ops.plan_decode(lengths, pages.table, block_size, threads)
    out, lse = ops.decode_attention(q_latent, pages.cache, groups, dims.scale, dims.rank)
    values = torch.einsum("bnl,nvl->bnv", out, w_uv)
    for request, length in enumerate(lengths):
        if length == 0:
            assert not out[request].any()
            assert torch.isneginf(lse[request]).all()
            continue
        rows = pages.latents[request]
        scores = q_latent[request] @ rows.T * dims.scale
        want = full_heads(dims, q[request], rows, weight)
        torch.testing.assert_close(values[request], want, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(lse[request], scores.logsumexp(-1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", 2e-6), ("bfloat16", 1e-2), ("float16", 2e-3)]
)
def test_decode_rounds_no_more_than_its_dtype(ops: ModuleType, dtype: str, bound: float) -> None:
    """The scores and the sums are fp32: the error is that of reading and storing in the dtype."""
    torch.manual_seed(1)
    dims, kind = Dims(heads=16, rank=512, rope=64), getattr(torch, dtype)
    lengths = [900, 40]
    pages = paged(dims, lengths, 16, kind)
    q = (3 * torch.randn(2, dims.heads, dims.row)).to(kind)
    groups = ops.plan_decode(lengths, pages.table, 16, 2)
    out, _ = ops.decode_attention(q, pages.cache, groups, 0.05, dims.rank)
    for request, rows in enumerate(pages.latents):
        p = torch.softmax(q[request].double() @ rows.double().T * 0.05, dim=-1)
        want = p @ rows[:, : dims.rank].double()
        assert (out[request].double() - want).norm() / want.norm() < bound


def test_decode_never_expands_the_cache(ops: ModuleType) -> None:
    """The largest tensor a step makes is the gathered latents, not keys or values of all heads."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            for made in result if isinstance(result, tuple) else (result,):
                if isinstance(made, torch.Tensor):
                    self.elements = max(self.elements, made.untyped_storage().nbytes() // 4)
            return result

    dims = Dims(heads=16, rank=64, rope=16)
    lengths = [2000, 1999]
    pages = paged(dims, lengths, 16, torch.float32)
    q = torch.randn(2, dims.heads, dims.row)
    groups = ops.plan_decode(lengths, pages.table, 16, 2)
    cache = pages.cache[: len(pages.cache)]
    with Largest() as largest:
        ops.decode_attention(q, cache, groups, dims.scale, dims.rank)
    assert largest.elements <= max(cache.numel(), 2 * 2000 * dims.row)


def test_plan_covers_every_position_once_and_pads_with_written_rows(ops: ModuleType) -> None:
    torch.manual_seed(2)
    lengths = [int(n) for n in torch.randint(1, 3000, (40,))]
    block_size = 32
    pages = paged(Dims(), lengths, block_size)
    seen = []
    for group in ops.plan_decode(lengths, pages.table, block_size, 4):
        assert group.slots.numel() <= max(ops._MAX_GROUP_ROWS, group.slots.shape[-1] * 4) * 2
        for request, slots, bias in zip(
            group.requests.tolist(),
            group.slots.flatten(1),
            [None] * len(group.requests) if group.bias is None else group.bias.flatten(1),
            strict=True,
        ):
            seen.append(request)
            length = lengths[request]
            want = ops.context_slots(pages.table[request], 0, length, block_size)
            assert torch.equal(slots[:length], want)
            assert (slots[length:] == want[-1]).all()
            padding = torch.zeros(len(slots)) if bias is None else bias
            assert not padding[:length].any()
            assert torch.isneginf(padding[length:]).all()
        if group.bias is not None:
            assert not torch.isneginf(group.bias).all(-1).any(), "a part without a position"
    assert sorted(seen) == list(range(len(lengths)))


def test_write_skips_padding_and_leaves_other_rows(ops: ModuleType, reference: ModuleType) -> None:
    torch.manual_seed(3)
    dims = Dims()
    slots = torch.tensor([37, -1, 0, 12, -1, 4])
    kv_c, k_pe = torch.randn(8, dims.rank), torch.randn(8, dims.rope)  # two rows beyond the slots
    caches = [torch.full((3, 16, dims.row), torch.nan) for _ in range(2)]
    ops.write_latents(caches[0], slots, kv_c, k_pe)
    reference.write_latents(caches[1], slots, kv_c, k_pe)
    assert torch.equal(caches[0].nan_to_num(7), caches[1].nan_to_num(7))
    rows = caches[0].view(-1, dims.row)
    assert torch.equal(rows[12], torch.cat((kv_c[3], k_pe[3])))
    assert int((~rows.isnan()).any(-1).sum()) == 4


def test_write_of_padding_only_changes_nothing(ops: ModuleType) -> None:
    cache = torch.zeros(1, 4, 5)
    ops.write_latents(cache, torch.tensor([-1, -1]), torch.ones(2, 3), torch.ones(2, 2))
    assert not cache.any()


def expanded(dims: Dims, latents: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    kv_c, k_pe = latents.split([dims.rank, dims.rope], dim=-1)
    kv = (kv_c @ weight.T).view(len(latents), dims.heads, -1)
    k_nope, v = kv.split([dims.nope, dims.value], dim=-1)
    return torch.cat((k_nope, k_pe[:, None].expand(-1, dims.heads, -1)), dim=-1), v


@pytest.mark.parametrize("dims", GEOMETRIES[:3], ids=str)
@pytest.mark.parametrize(("context", "new"), [(0, 1), (0, 33), (1, 1), (50, 7), (130, 40)])
def test_chunked_prefill_equals_full_head_attention(
    ops: ModuleType, reference: ModuleType, dims: Dims, context: int, new: int
) -> None:
    torch.manual_seed(context + new)
    block_size, total = 16, context + new
    pages, weight = paged(dims, [total], block_size), weights(dims)
    q = torch.randn(new, dims.heads, dims.nope + dims.rope, dtype=torch.float64)
    k, v = expanded(dims, pages.latents[0][context:], weight)
    out, lse = ops.attention_with_lse(q, k, v, dims.scale, causal=True)
    for start in range(0, context, 37):
        stop = min(start + 37, context)
        slots = ops.context_slots(pages.table[0], start, stop, block_size)
        k, v = expanded(dims, ops.gather_latents(pages.cache, slots), weight)
        piece = ops.attention_with_lse(q, k, v, dims.scale, causal=False)
        out, lse = ops.merge_attention(out, lse, *piece)
    for position in range(new):
        want = full_heads(dims, q[position], pages.latents[0][: context + position + 1], weight)
        torch.testing.assert_close(out[position], want, rtol=1e-10, atol=1e-12)
    latents = reference.read_latents(pages.cache, pages.table[0], total)
    twin = reference.full_head_attention(q, latents, weight, dims.scale, dims.value)
    torch.testing.assert_close(out, twin, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("context", "new"), [(1, 1), (50, 7), (1300, 32)])
def test_a_context_may_stay_absorbed_for_several_queries(
    ops: ModuleType, context: int, new: int
) -> None:
    """Queries that all see the whole context are a decode of one request with new * N heads."""
    torch.manual_seed(context)
    dims = Dims()
    pages, weight = paged(dims, [context + new], 16), weights(dims)
    q = torch.randn(new, dims.heads, dims.nope + dims.rope, dtype=torch.float64)
    k, v = expanded(dims, pages.latents[0][context:], weight)
    out, lse = ops.attention_with_lse(q, k, v, dims.scale, causal=True)
    q_latent, w_uv = absorbed(dims, q, weight)
    groups = ops.plan_decode([context], pages.table, 16, 2)
    heads = q_latent.reshape(1, -1, dims.row)
    part, part_lse = ops.decode_attention(heads, pages.cache, groups, dims.scale, dims.rank)
    part = torch.einsum("bnl,nvl->bnv", part.view(new, dims.heads, -1), w_uv)
    out, _ = ops.merge_attention(out, lse, part, part_lse.view(new, dims.heads))
    for position in range(new):
        want = full_heads(dims, q[position], pages.latents[0][: context + position + 1], weight)
        torch.testing.assert_close(out[position], want, rtol=1e-10, atol=1e-12)


def test_merge_of_a_long_chain_keeps_fp32(ops: ModuleType) -> None:
    """A hundred bf16 chunks must not round a hundred times."""
    torch.manual_seed(4)
    q = torch.randn(1, 2, 16).bfloat16()
    k, v = torch.randn(6400, 2, 16).bfloat16(), torch.randn(6400, 2, 16).bfloat16()
    out, lse = ops.attention_with_lse(q, k[:64], v[:64], 0.25, causal=False)
    for start in range(64, 6400, 64):
        rows = slice(start, start + 64)
        piece = ops.attention_with_lse(q, k[rows], v[rows], 0.25, causal=False)
        out, lse = ops.merge_attention(out, lse, *piece)
    want, _ = ops.attention_with_lse(q.double(), k.double(), v.double(), 0.25, causal=False)
    assert out.dtype == torch.float32
    assert (out - want).abs().max() < 5e-4


PLANTED = {
    "mask on the wrong side": ("positions > last", "positions < last"),
    "page order lost": ("positions // block_size]", "(positions // block_size).flip(0)]"),
    "rope columns read as values": (
        "part_out[..., :kv_lora_rank]",
        "part_out[..., -kv_lora_rank:]",
    ),
    "parts averaged, not merged": (
        "torch.softmax(part_lse, dim=1)",
        "torch.full_like(part_lse, 0.5)",
    ),
    "scale forgotten": ("scale=scale", "scale=1.0"),
    "padding written": ("slot_mapping >= 0", "slot_mapping >= -1"),
    "causal mask dropped": ("is_causal=causal", "is_causal=False"),
    "merge ignores the other sum": ("torch.logaddexp(lse, other_lse)", "lse"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(
    ops: ModuleType, reference: ModuleType, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault, made in the rendered source, fails one of the tests above."""
    right, wrong = PLANTED[fault]
    source = (TEMPLATES / "mla" / "cpu_ops.py.j2").read_text()
    assert right in source
    module = ModuleType("faulty_cpu_ops")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source.replace(right, wrong), "faulty.py", "exec"), module.__dict__)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        check_every_operator(module, reference)


def check_every_operator(ops: ModuleType, reference: ModuleType) -> None:
    torch.manual_seed(5)
    check_decode(ops, Dims(), [1500, 3, 40], block_size=16, threads=2)
    test_chunked_prefill_equals_full_head_attention(ops, reference, Dims(), 130, 40)
    test_write_skips_padding_and_leaves_other_rows(ops, reference)


def test_right_operators_pass_what_faults_must_fail(ops: ModuleType, reference: ModuleType) -> None:
    check_every_operator(ops, reference)


@pytest.fixture(params=["0", "1"], ids=["operators", "twins"])
def before_v1(
    request: pytest.FixtureRequest,
    ops: ModuleType,
    reference: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ModuleType]:
    """What CPUMLAImpl attends by in the engine before V1."""
    package = ModuleType("vllm.attention.ops")
    vars(package).update(cpu_mla=ops, cpu_mla_reference=reference)
    for parent in (ModuleType("vllm"), ModuleType("vllm.attention"), package):
        monkeypatch.setitem(sys.modules, parent.__name__, parent)
    monkeypatch.setenv("DSPATCH_REFERENCE_OPS", request.param)
    module = rendered("mla/cpu_attention_before_v1", "rendered_before_v1")
    yield module
    del sys.modules[module.__name__]


def implementation(dims: Dims, weight: Tensor) -> SimpleNamespace:
    """What that engine's MLA keeps of its weights and dims."""
    up = weight.view(dims.heads, dims.nope + dims.value, dims.rank)
    return SimpleNamespace(
        num_heads=dims.heads, kv_lora_rank=dims.rank, qk_nope_head_dim=dims.nope, v_head_dim=dims.value,
        scale=dims.scale, kv_b_proj=lambda x: (x @ weight.T, None),
        W_UK_T=up[:, : dims.nope], W_UV=up[:, dims.nope :].transpose(1, 2),
    )  # fmt: skip


def same(module: ModuleType, found: Tensor, want: Tensor) -> None:
    """As in fp64, or by the twins as in fp32."""
    near = (
        {"rtol": 1e-4, "atol": 1e-5}
        if module._USE_REFERENCE_OPS
        else {"rtol": 1e-10, "atol": 1e-12}
    )
    torch.testing.assert_close(found, want, **near)


@pytest.mark.parametrize("dims", GEOMETRIES[:3], ids=str)
def test_prompts_before_v1_see_their_own_tokens_alone(before_v1: ModuleType, dims: Dims) -> None:
    torch.manual_seed(6)
    lengths, weight = [33, 1, 7], weights(dims)
    prompts = [torch.randn(length, dims.row, dtype=torch.float64) for length in lengths]
    kv_c, k_pe = torch.cat(prompts).split([dims.rank, dims.rope], dim=-1)
    q = torch.randn(sum(lengths), dims.heads, dims.nope + dims.rope, dtype=torch.float64)
    metadata = SimpleNamespace(query_start_loc=torch.tensor([0, *lengths]).cumsum(0))
    out = before_v1.prefill(implementation(dims, weight), q, kv_c, k_pe[:, None], metadata)
    seen = [prompt[: position + 1] for prompt in prompts for position in range(len(prompt))]
    for token, rows in enumerate(seen):
        same(before_v1, out[token], full_heads(dims, q[token], rows, weight))


@pytest.mark.parametrize("dims", GEOMETRIES[:3], ids=str)
def test_each_layer_before_v1_decodes_its_own_cache_by_the_pass_s_plan(
    before_v1: ModuleType, dims: Dims
) -> None:
    torch.manual_seed(7)
    lengths, weight = [70, 600, 2], weights(dims)
    pages = paged(dims, lengths, 16)
    impl = implementation(dims, weight)
    metadata = SimpleNamespace(seq_lens_tensor=torch.tensor(lengths), block_tables=pages.table)
    for layer in (1, 2):
        q = torch.randn(len(lengths), dims.heads, dims.nope + dims.rope, dtype=torch.float64)
        q_latent, w_uv = absorbed(dims, q, weight)
        out = before_v1.decode(impl, q_latent, pages.cache * layer, metadata)
        values = torch.einsum("bnl,nvl->bnv", out, w_uv)
        for request, rows in enumerate(pages.latents):
            same(before_v1, values[request], full_heads(dims, q[request], rows * layer, weight))
