"""The operators of sparse MLA that the series adds to the engine, rendered and run on plain PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest

from tests.unit.templatekit import rendered

torch = pytest.importorskip("torch", reason="operators run on PyTorch, which the engine brings")

# So many heads that no key is left without a vote: such keys would tie.
HEADS, DIM, MOST, RANK, ROPE = 24, 8, 6, 12, 4
# New tokens and length of each request: a prefill, decodes, later chunks, one with no token.
BATCHES = [
    [(9, 9)],
    [(1, 1), (1, 40), (1, 6), (1, 7)],
    [(20, 20), (1, 13), (5, 31), (0, 0), (4, 6)],
    [(3, 12), (16, 33)],
]
Tensor = Any


def _held(name: str) -> Iterator[ModuleType]:
    module = rendered(f"mla/{name}", f"rendered_{name}")
    yield module
    del sys.modules[module.__name__]


@pytest.fixture(scope="module")
def ops() -> Iterator[ModuleType]:
    yield from _held("cpu_sparse_ops")


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    yield from _held("cpu_sparse_reference")


class Batch:
    """Caches with scattered, strided blocks, NaN where nobody wrote, and a batch that reads them."""

    def __init__(self, ops: ModuleType, sizes: Sequence[tuple[int, int]], block_size: int) -> None:
        torch.manual_seed(block_size + len(sizes))
        counts = [-(-length // block_size) for _, length in sizes]
        order, used = torch.randperm(sum(counts) + 2), 0
        table = torch.zeros(len(sizes), max([*counts, 1]), dtype=torch.int32)
        for row, count in zip(table, counts, strict=True):
            row[:count] = order[used : used + count]
            used += count
        starts = [0]
        for tokens, _ in sizes:
            starts.append(starts[-1] + tokens)
        self.requests = ops.plan(starts, [length for _, length in sizes], table, block_size)
        self.keys = self._cache(len(order), block_size, DIM)
        self.latents = self._cache(len(order), block_size, RANK + ROPE)
        for request in self.requests:
            positions = torch.arange(request.seq_len)
            slots = request.blocks[positions // block_size] * block_size + positions % block_size
            for cache in (self.keys, self.latents):
                ops.store_rows(cache, slots, torch.randn(request.seq_len, cache.shape[2]))
        self.tokens = starts[-1]
        self.q = torch.randn(self.tokens, HEADS, DIM)
        self.weights = torch.randn(self.tokens, HEADS)
        self.absorbed = torch.randn(self.tokens, HEADS, RANK + ROPE)

    @staticmethod
    def _cache(blocks: int, block_size: int, width: int) -> Tensor:
        # Blocks lie apart, as they do where layers of unlike caches share an allocation.
        return torch.full((blocks, block_size + 1, width), torch.nan)[:, :block_size]

    def choose(self, which: ModuleType) -> Tensor:
        chosen = torch.full((self.tokens, MOST), 77, dtype=torch.int32)
        which.choose_keys(self.q, self.weights, self.keys, self.requests, chosen)
        return chosen

    def attend(self, which: ModuleType, chosen: Tensor) -> Tensor:
        return which.attend_chosen(self.absorbed, self.latents, self.requests, chosen, 0.3, RANK)


def sets(chosen: Tensor) -> list[list[int]]:
    return [sorted(key for key in row if key >= 0) for row in chosen.tolist()]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_operators_equal_their_twins(
    ops: ModuleType, reference: ModuleType, sizes: list[tuple[int, int]], block_size: int
) -> None:
    batch = Batch(ops, sizes, block_size)
    chosen = batch.choose(ops)
    assert sets(chosen) == sets(batch.choose(reference))
    found = batch.attend(ops, chosen)
    torch.testing.assert_close(found, batch.attend(reference, chosen), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_the_choice_is_the_best_keys_that_came_before(
    ops: ModuleType, sizes: list[tuple[int, int]]
) -> None:
    batch = Batch(ops, sizes, 4)
    chosen = batch.choose(ops)
    for request in batch.requests:
        keys = batch.keys[request.blocks].flatten(0, 1)[: request.seq_len].double()
        rows = range(request.rows.start, request.rows.stop)
        for row, position in zip(rows, request.positions.tolist(), strict=True):
            votes = (keys[: position + 1] @ batch.q[row].double().T).clamp_min(0)
            best = (votes @ batch.weights[row].double()).topk(min(MOST, position + 1)).indices
            assert sets(chosen[row : row + 1]) == [sorted(best.tolist())]


def test_both_ways_to_attend_are_one(ops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(ops, BATCHES[2], 4)
    chosen, found = batch.choose(ops), []
    for limit in (0, 1000):
        monkeypatch.setattr(ops, "_DENSE_UP_TO", limit)
        found.append(batch.attend(ops, chosen))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_work_is_cut_to_bounded_pieces(ops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch(ops, BATCHES[2], 4)
    whole = batch.choose(ops)
    attended = batch.attend(ops, whole)
    monkeypatch.setattr(ops, "_MAX_ELEMENTS", 1)
    assert [len(list(request.parts(7))) for request in batch.requests] == [20, 1, 5, 4]
    assert sets(batch.choose(ops)) == sets(whole)
    torch.testing.assert_close(batch.attend(ops, whole), attended, rtol=1e-5, atol=1e-6)


def test_padding_is_not_stored(ops: ModuleType, reference: ModuleType) -> None:
    for which in (ops, reference):
        cache = torch.zeros(2, 4, 3)
        which.store_rows(cache, torch.tensor([5, -1, 0]), torch.ones(4, 3))
        assert cache.sum() == 6
        assert cache[1, 1].sum() == cache[0, 0].sum() == 3


@pytest.mark.parametrize("fault", ["positions", "relu", "weights", "count"])
def test_a_wrong_choice_is_seen(ops: ModuleType, reference: ModuleType, fault: str) -> None:
    batch = Batch(ops, BATCHES[2], 4)
    right = sets(batch.choose(reference))
    if fault == "weights":
        batch.weights = batch.weights.abs()
    if fault == "relu":
        batch.q, batch.weights = -batch.q, -batch.weights  # the same sum, were it not for the relu
    if fault == "positions":
        batch.requests[0] = ops.Request(
            rows=batch.requests[0].rows, seq_len=21, blocks=batch.requests[0].blocks
        )
        batch.keys.nan_to_num_(0.0)
    wrong = sets(batch.choose(ops))
    assert [row[1:] if fault == "count" else row for row in wrong] != right
