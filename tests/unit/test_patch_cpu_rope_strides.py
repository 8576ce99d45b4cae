"""The rotary embedding that the series puts before the CPU kernel, on every layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.unit.templatekit import rendered

torch = pytest.importorskip("torch", reason="the operator runs on PyTorch, which the engine brings")

TOKENS, HEADS, MAX_POSITION = 11, 5, 64
Tensor = Any
Kernel = Callable[..., None]


def kernel(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cache: Tensor, neox: bool
) -> None:
    """csrc/cpu/pos_encoding.cpp as it addresses memory, with bounds and alignment checked."""
    assert positions.is_contiguous()
    for x in (query, key):
        if x is None:
            continue
        step, heads = x.stride(-2), x.size(-1) // head_size
        if neox and x.element_size() == 2:
            starts = (
                x.storage_offset(),
                step if x.size(0) > 1 else 0,
                head_size,
                cache.size(1) // 2,
            )
            assert all(start % 8 == 0 for start in starts), "misaligned store"
        place = (len(positions), heads, head_size), (step, head_size, 1)
        rotate(positions, x.as_strided(*place), cache, neox)


def rotate(positions: Tensor, heads: Tensor, cache: Tensor, neox: bool) -> None:
    """[tokens, heads, head_size] in place, element by element."""
    half = cache.size(1) // 2
    cos, sin = cache[positions].float().split(half, dim=-1)
    for pair in range(half):
        i, j = (pair, pair + half) if neox else (2 * pair, 2 * pair + 1)
        x, y = (heads[..., k].float().clone() for k in (i, j))
        c, s = cos[:, None, pair], sin[:, None, pair]
        heads[..., i] = x * c - y * s
        heads[..., j] = y * c + x * s


@pytest.fixture
def calls() -> list[int]:
    """The dimensions of every tensor that reached the kernel."""
    return []


@pytest.fixture
def rope(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> Iterator[ModuleType]:
    def counted(positions: Tensor, query: Tensor, key: Tensor | None, *rest: Any) -> None:
        calls.append(query.dim())
        kernel(positions, query, key, *rest)

    custom_ops = ModuleType("vllm._custom_ops")
    custom_ops.rotary_embedding = counted  # type: ignore[attr-defined]
    vllm = ModuleType("vllm")
    vllm._custom_ops = custom_ops  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", custom_ops)
    monkeypatch.delenv("DSPATCH_REFERENCE_OPS", raising=False)
    module = rendered("rope/cpu_rope", "cpu_rope")
    yield module
    del sys.modules[module.__name__]


def numbers(*shape: int, dtype: Any = None) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


# Name -> a tensor of TOKENS tokens and head size d, and whether the kernel can read it as it is.
LAYOUTS: dict[str, tuple[Callable[[int], Tensor], bool]] = {
    "2-d": (lambda d: numbers(TOKENS, HEADS * d), True),
    "2-d, sliced": (lambda d: numbers(TOKENS, (HEADS + 2) * d)[:, d:-d], True),
    "2-d, columns first": (lambda d: numbers(HEADS * d, TOKENS).t(), False),
    "3-d": (lambda d: numbers(TOKENS, HEADS, d), True),
    "3-d, one head": (lambda d: numbers(TOKENS, 3 * d)[:, 2 * d :].unsqueeze(1), True),
    "3-d, end of each head": (lambda d: numbers(TOKENS, HEADS, d + 24)[..., 24:], True),
    "3-d, start of each head": (lambda d: numbers(TOKENS, HEADS, d + 24)[..., :d], True),
    "3-d, some heads": (lambda d: numbers(TOKENS, HEADS + 3, d)[:, 1 : HEADS + 1], True),
    "3-d, parts of some heads": (
        lambda d: numbers(TOKENS, HEADS + 3, d + 8)[:, 1 : HEADS + 1, 8:],
        False,
    ),
    "3-d, heads first": (lambda d: numbers(HEADS, TOKENS, d).transpose(0, 1), False),
}


def caches(rotary_dim: int, dtype: Any) -> Tensor:
    angles = torch.arange(MAX_POSITION)[:, None] * 0.7 ** torch.arange(rotary_dim // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def spread_positions() -> Tensor:
    return torch.randint(0, MAX_POSITION, (TOKENS,), generator=torch.Generator().manual_seed(1))


def storage(x: Tensor) -> Tensor:
    """Everything in memory around a view."""
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def wanted_storage(x: Tensor, positions: Tensor, d: int, cache: Tensor, neox: bool) -> Tensor:
    """What must stand in memory afterwards: the rotated view, and the rest untouched."""
    memory = storage(x).clone()
    view = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    heads = view.unflatten(-1, (-1, d)) if x.dim() == 2 else view
    rotate(positions, heads, cache, neox)
    return memory


@pytest.mark.parametrize("reference", [False, True], ids=["kernel", "reference"])
@pytest.mark.parametrize("neox", [True, False], ids=["neox", "interleaved"])
@pytest.mark.parametrize(("d", "rotary_dim"), [(32, 32), (64, 32), (40, 20)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_rotated_in_place(
    rope: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[int],
    layout: str,
    d: int,
    rotary_dim: int,
    neox: bool,
    reference: bool,
) -> None:
    if reference:
        monkeypatch.setenv("DSPATCH_REFERENCE_OPS", "1")
    make, readable = LAYOUTS[layout]
    query, key = make(d), numbers(TOKENS, 2, d + 8)[..., 8:]
    cache, positions = caches(rotary_dim, torch.float32), spread_positions()
    wanted = [wanted_storage(x, positions, d, cache, neox) for x in (query, key)]

    rope.rotary_embedding_cpu(positions, query, key, d, cache, neox)

    for x, memory in zip((query, key), wanted, strict=True):
        torch.testing.assert_close(storage(x), memory, rtol=1e-6, atol=1e-6)
    assert calls == ([] if reference else [2, 2] if readable else [2])


def test_rows_take_one_call_and_no_copy(rope: ModuleType, calls: list[int]) -> None:
    cache = caches(32, torch.float32)
    rope.rotary_embedding_cpu(
        spread_positions(), numbers(TOKENS, HEADS * 32), numbers(TOKENS, 64), 32, cache, True
    )
    assert calls == [2]


def test_the_key_may_be_missing_and_the_batch_two_dimensional(rope: ModuleType) -> None:
    cache, positions = caches(32, torch.float32), torch.arange(12).view(3, 4) * 2
    query = numbers(3, 4, HEADS, 40)[..., 8:]
    wanted = query.clone().flatten(0, 1)
    rotate(positions.flatten(), wanted, cache, False)
    rope.rotary_embedding_cpu(positions, query, None, 32, cache, False)
    torch.testing.assert_close(query.flatten(0, 1), wanted)


def test_positions_with_gaps_in_memory_are_read_rightly(rope: ModuleType) -> None:
    cache, positions = caches(32, torch.float32), spread_positions().repeat_interleave(2)[::2]
    query = numbers(TOKENS, HEADS * 32)
    wanted = wanted_storage(query, positions, 32, cache, True)
    rope.rotary_embedding_cpu(positions, query, None, 32, cache, True)
    torch.testing.assert_close(storage(query), wanted)


def test_no_token_is_no_fault(rope: ModuleType) -> None:
    none, cache = torch.empty(0, dtype=torch.int64), caches(32, torch.float32)
    rope.rotary_embedding_cpu(none, numbers(0, 3, 40)[..., 8:], None, 32, cache, True)


@pytest.mark.parametrize(("d", "offset"), [(40, 0), (32, 4)])
def test_sixteen_bit_stores_are_aligned_or_avoided(
    rope: ModuleType, calls: list[int], d: int, offset: int
) -> None:
    query = numbers(TOKENS, HEADS, d + offset, dtype=torch.bfloat16)[..., offset:]
    cache, positions = caches(d // 2, torch.bfloat16), spread_positions()
    wanted = wanted_storage(query, positions, d, cache, True)
    rope.rotary_embedding_cpu(positions, query, None, d, cache, True)
    torch.testing.assert_close(storage(query), wanted, rtol=2e-2, atol=2e-2)
    assert calls == []


@pytest.mark.parametrize("layout", ["3-d", "3-d, end of each head"])
def test_the_kernel_itself_gets_these_layouts_wrong(layout: str) -> None:
    query = LAYOUTS[layout][0](32)
    cache, positions = caches(32, torch.float32), spread_positions()
    wanted = wanted_storage(query, positions, 32, cache, True)
    kernel(positions, query, None, 32, cache, True)
    assert (storage(query) - wanted).abs().max() > 1


def test_a_row_that_holds_too_many_heads_is_caught(
    rope: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rope, "_heads_per_row", lambda heads: heads.shape[-2])
    query = numbers(TOKENS, HEADS, 40)[..., 8:]
    with pytest.raises(RuntimeError):
        rope.rotary_embedding_cpu(
            spread_positions(), query, None, 32, caches(32, torch.float32), True
        )
