"""Decode steps to try MLA kernels on: scattered pages, everything unwritten poisoned, fp64 truth.

Runs where torch is: in the kernels' environment, or on a machine with a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

LATENT, ROPE = 512, 64
WIDE = LATENT + ROPE
SCALE = (128 + ROPE) ** -0.5
# One that there is not, with so few processors that they share a request.
CARD = {"capability": (8, 0), "shared_memory": 232448, "processors": 3}


@dataclass(frozen=True, kw_only=True)
class Step:
    """Inputs of one step: q [B, Q, N, 576], cache [pages, page, 576], table, lengths [B].

    scale: of an fp8 cache. sparse: the table lists slots, lengths say how many to look at.
    """

    q: Any
    cache: Any
    table: Any
    lengths: Any
    scale: Any = None
    sparse: bool = False

    @property
    def shape(self) -> dict[str, Any]:
        """What a Shape of the kernels says of this step."""
        _, q_len, heads, _ = self.q.shape
        return {
            "heads": heads,
            "q_len": q_len,
            "page": self.cache.shape[1],
            "dtype": self.q.dtype,
            "cache": self.cache.dtype,
            "sparse": self.sparse,
        }

    def result(self, latent: int = LATENT) -> tuple[Any, Any]:
        """Poisoned buffers for its output and its log-sum-exp."""
        shape = self.q.shape[:3]
        out = torch.full((*shape, latent), torch.nan, dtype=self.q.dtype, device=self.q.device)
        return out, torch.full(shape, torch.nan, dtype=torch.float32, device=self.q.device)

    def decoded(self, decoder: Any, longest: int = 0) -> tuple[Any, Any]:
        """Output and log-sum-exp of a decoder that planned it; `longest` where the host knows it."""
        out, lse = self.result(decoder.shape.latent)
        decoder.plan(self.lengths, self.table, longest)
        decoder(self.q, self.cache, self.table, self.lengths, SCALE, out, lse, self.scale)
        return out, lse

    def of(self, requests: Sequence[int]) -> Step:
        """The same step of some of its requests alone."""
        some = list(requests)
        return replace(self, q=self.q[some], table=self.table[some], lengths=self.lengths[some])


def step(
    lengths: Sequence[int],
    *,
    heads: int,
    q_len: int = 1,
    page: int = 64,
    dtype: Any = torch.bfloat16,
    device: str = "cpu",
    seed: int = 0,
    latent: int = LATENT,
    rope: int = ROPE,
    fp8: bool = False,
) -> Step:
    """A step whose pages are scattered; every row that no request owns is NaN.

    fp8: the cache holds e4m3, to be multiplied by a scale that is no power of two.
    """
    wide = latent + rope
    generator = torch.Generator(device).manual_seed(seed)
    made: dict[str, Any] = {"generator": generator, "device": device, "dtype": torch.float32}
    counts = [-(-length // page) for length in lengths]
    used = sum(counts)
    order = torch.randperm(used + 3, generator=generator, device=device).to(torch.int32)
    columns = max([*counts, 1])
    # Past a request's end stands a page that nobody wrote.
    table = order[-1].repeat(len(lengths), columns)
    # DeepSeek's own test data is a tenth of normal; with queries that large the weights are uneven.
    cache = (torch.randn(used + 3, page, wide, **made) / 10).clamp(-1, 1)
    scale = torch.tensor(0.003, device=device) if fp8 else None
    cache = cache.to(dtype) if scale is None else cache / scale
    begin = 0
    for request, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = order[begin : begin + count]
        table[request, :count] = pages
        if length % page:
            cache[pages[-1].long(), length % page :] = torch.nan
        begin += count
    cache[order[used:].long()] = torch.nan
    return Step(
        q=(4 * torch.randn(len(lengths), q_len, heads, wide, **made)).to(dtype),
        cache=cache.to(torch.float8_e4m3fn) if fp8 else cache,
        table=table,
        lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
        scale=scale,
    )


def sparse(one: Step, most: int, *, holes: bool = True, seed: int = 0) -> Step:
    """The step with a list of up to `most` of each request's slots, in no order, in place of its pages.

    Behind each list, and with holes also within it, stands -1. What nobody lists becomes NaN.
    """
    draw = random.Random(seed)
    page = one.cache.shape[1]
    rows, counts = [], []
    for request, length in enumerate(one.lengths.tolist()):
        pages = one.table[request].tolist()
        picked = draw.sample(range(length), min(length, most))
        slots = [pages[token // page] * page + token % page for token in picked]
        for _ in range(draw.randrange(4) if holes and len(slots) < most else 0):
            slots.insert(draw.randrange(len(slots) + 1), -1)
        rows.append((slots + [-1] * most)[:most])
        counts.append(min(len(slots), most))
    device = one.cache.device
    table = torch.tensor(rows, dtype=torch.int32, device=device)
    kept = torch.zeros(one.cache.shape[0] * page, dtype=torch.bool, device=device)
    kept[table[table >= 0].long()] = True
    cache = one.cache.float()
    cache[~kept.view(-1, page)] = torch.nan
    return replace(
        one,
        cache=cache.to(one.cache.dtype),
        table=table,
        lengths=torch.tensor(counts, dtype=torch.int32, device=device),
        sparse=True,
    )


def truth(reference: Any, one: Step, latent: int = LATENT) -> tuple[Any, Any]:
    """What the reference twin says in fp64."""
    return reference.decode_attention(
        one.q,
        one.cache,
        one.table,
        one.lengths,
        SCALE,
        latent,
        dtype=torch.float64,
        cache_scale=1.0 if one.scale is None else one.scale.double(),
        sparse=one.sparse,
    )


def faults(got: Any, lse: Any, want: Any, want_lse: Any) -> list[str]:
    """What is wrong with a result, by DeepSeek's three criteria and the relative L2 error.

    No value may be off by more than 8e-4 and 2 of 128 of itself at once; 1 minus the cosine
    similarity stays below 5e-6, the relative L2 error below 4e-3, log-sum-exps within 1e-3.
    """
    said = []
    got, want = got.double(), want.double()
    if not torch.isfinite(got).all():
        said.append(f"{int((~torch.isfinite(got)).sum())} values are not finite")
    off = (got - want).abs()
    wrong = (off > 8e-4) & (off > want.abs() * 2.01 / 128)
    if wrong.any():
        said.append(f"{int(wrong.sum())} values are off, by up to {float(off.max()):.2e}")
    if (norm := float(want.norm())) > 0:
        cosine = 1 - 2 * float((got * want).sum()) / float((got * got + want * want).sum())
        if not cosine < 5e-6:
            said.append(f"cosine difference {cosine:.2e}")
        if not (relative := float((got - want).norm()) / norm) <= 4e-3:
            said.append(f"relative L2 error {relative:.2e}")
    empty = torch.isneginf(want_lse)
    if not torch.equal(torch.isneginf(lse), empty):
        said.append("rows without a token, and only they, have a log-sum-exp of -inf")
    elif not torch.allclose(lse[~empty].double(), want_lse[~empty].double(), rtol=0, atol=1e-3):
        said.append("the log-sum-exp is off")
    return said
