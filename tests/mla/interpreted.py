"""Run the rendered kernels through Triton's interpreter on a CPU, against fp64.

    python interpreted.py FOLDER-OF-mla_decode CHECK...

The kernels are rendered for a small model; fp16, as the interpreter does not multiply bf16. Each
check prints its name when it holds; a fault is an AssertionError.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.mla import cases

LATENT, ROPE = 64, 16


def mended() -> None:
    """Give the interpreters of Triton 3.2 and 3.3 what they lack.

    A scalar of one bit has no type there, and a store writes the bytes of its value as they lie, though numpy has
    made int64 of it.
    """
    builder = interpreter.InterpreterBuilder
    if hasattr(builder, "get_int1_ty"):
        return
    store = builder.create_masked_store

    def of_its_width(self: Any, at: Any, value: Any, *more: Any) -> Any:
        kind = interpreter._get_np_dtype(value.dtype)
        return store(
            self, at, interpreter.TensorHandle(value.data.astype(kind), value.dtype), *more
        )

    builder.get_int1_ty = lambda self: tl.int1
    builder.create_masked_store = of_its_width


def decode(lengths: Sequence[int], heads: int, q_len: int, page: int) -> None:
    """One step has no fault."""
    without_faults(made(lengths, page, heads=heads, q_len=q_len))


def heads() -> None:
    """A row block that is not full, and one that is."""
    decode([70, 0, 1, 130], heads=4, q_len=1, page=64)
    decode([40], heads=32, q_len=1, page=64)


def pages() -> None:
    """Pages larger than a tile, smaller, and of no power of two."""
    for page in (128, 16, 24, 1):
        decode([75, 3], heads=4, q_len=1, page=page)


def new_tokens() -> None:
    """Several new tokens a request, also more of them than the request has."""
    decode([2, 90, 65, 0], heads=4, q_len=4, page=64)


def decoder_of(one: Any, **more: Any) -> Any:
    """A decoder that takes a step."""
    import mla_decode as ours

    shape = ours.Shape(**one.shape, latent=LATENT, rope=ROPE)
    decoder = ours.Decoder(shape, "cpu", 8, card=ours.Card(**cases.CARD), **more)
    assert decoder.choice.kernel == "portable"
    return decoder


def without_faults(one: Any, **more: Any) -> None:
    """A decoder gets a step right."""
    import mla_decode as ours

    got = one.decoded(decoder_of(one, **more))
    assert (found := cases.faults(*got, *cases.truth(ours.reference, one, LATENT))) == [], found


def made(lengths: Sequence[int], page: int, *, heads: int = 4, **more: Any) -> Any:
    """A step, of four heads unless said otherwise."""
    dims = {"latent": LATENT, "rope": ROPE, "dtype": torch.float16}
    return cases.step(lengths, heads=heads, page=page, **dims, **more)


def fp8() -> None:
    """A cache in fp8, in pages larger and smaller than a tile; its scale must not be forgotten."""
    without_faults(made([70, 0, 1, 130], 64, fp8=True))
    without_faults(made([2, 90], 24, fp8=True, q_len=3))
    one = made([3], 64, fp8=True)
    decoder = decoder_of(one)
    decoder.plan(one.lengths, one.table)
    _refused("without its scale", decoder, one.q, one.cache, one.table, one.lengths, 1.0)


def every_fp8() -> None:
    """Every number that e4m3 has is read as what it is; NaN, which has no place in fp16 then, as 480."""
    from tests.mla import converted

    assert converted.faults("cpu", native=False) == []


def sparse() -> None:
    """Lists of slots, with holes, shorter than a tile and longer, none at all; also in fp8."""
    without_faults(cases.sparse(made([70, 0, 1, 130], 16), 80))
    without_faults(cases.sparse(made([90, 5], 64, fp8=True), 32))
    one = cases.sparse(made([40, 40], 16), 32)
    one.table[0] = -1
    without_faults(one)


def alone() -> None:
    """Cut alone, a request has the same bits in every batch, and they are right."""
    lengths = [700, 3, 0, 300, 1100]
    for one in (
        made(lengths, 16),
        made(lengths, 64, fp8=True),
        cases.sparse(made(lengths, 16), 600),
    ):
        without_faults(one, alone=True)
        out, lse = one.decoded(decoder_of(one, alone=True))
        for batch in ([0], [3, 0], [4, 2, 3, 1, 0, 3, 4]):
            some = one.of(batch)
            out_again, lse_again = some.decoded(decoder_of(one, alone=True))
            assert torch.equal(out_again, out[batch]), batch
            assert torch.equal(lse_again, lse[batch]), batch


def beyond() -> None:
    """A length beyond the table gives NaN, for that request alone; known on the host, a message."""
    one = made([20, 16, 5], 16)
    decoder = decoder_of(one)
    _refused("33 tokens, but the block table holds 32", decoder.plan, one.lengths, one.table, 33)
    one.lengths[1] = 33
    out, lse = one.decoded(decoder)
    assert out[1].isnan().all()
    assert lse[1].isnan().all()
    assert torch.isfinite(out[[0, 2]]).all()


def plans() -> None:
    """Every tile of every request is one worker's, and the parts to merge are those that were cut."""
    draw = random.Random(1)
    for _ in range(40):
        base, kind = draw.randrange(4000), draw.choice(["alike", "near", "any"])
        lengths = {
            "alike": lambda b=base: b,
            "near": lambda b=base: max(0, b + draw.randrange(-200, 200)),
            "any": lambda: draw.choice([0, 1, draw.randrange(5000)]),
        }[kind]
        batch = [lengths() for _ in range(draw.randrange(1, 40))]
        _plan(
            batch,
            draw.choice([1, 2, 7, 33]),
            draw.choice([16, 64]),
            draw.choice([0, 2]),
            draw.choice([1, 2]),
            draw.choice([0, 1, 4, 8]),
        )


def _plan(lengths: list[int], workers: int, tile: int, fixed: int, floor: int, alone: int) -> None:
    from mla_decode.plan import Plan

    sizes = {"rows": 1, "latent": 1, "tile": tile, "fixed": fixed, "floor": floor, "alone": alone}
    workers = alone * len(lengths) or workers
    sizes |= {"few": (workers + 1) // 2, "few_below": len(lengths) % 3 * 8}
    plan = Plan.empty(workers=workers, max_batch=len(lengths), **sizes, device="cpu")
    plan.make(torch.tensor(lengths, dtype=torch.int32), 10**6)
    tiles = [-(-length // tile) for length in lengths]
    parts: dict[int, list[tuple[int, int, int]]] = {}
    for worker, (first, begin, stop, end) in enumerate(plan.workers.tolist()):
        for request in range(first, stop):
            low = begin if request == first else 0
            high = min(end if request == stop - 1 else tiles[request], tiles[request])
            slot = 2 * worker + (request != first)
            parts.setdefault(request, []).append((low, high, slot))
    cut = {
        request: [opening, *(2 * worker for worker in range(start, last + 1))]
        for opening, start, last, request in plan.splits[1 : 1 + int(plan.splits[0, 0])].tolist()
    }
    assert sorted(parts) == list(range(len(lengths)))
    for request, mine in parts.items():
        edges = [0, *(high for _, high, _ in mine)]
        assert edges[-1] == tiles[request], (lengths, workers, request, mine)
        assert [low for low, _, _ in mine] == edges[:-1], (lengths, workers, request, mine)
        slots = [slot for *_, slot in mine]
        assert cut.get(request) == (slots if len(mine) > 1 else None), (lengths, workers, mine)


def refusals() -> None:
    """What the kernels do not serve is told, with what they do serve."""
    import mla_decode as ours

    fine = {
        "heads": 4,
        "q_len": 1,
        "page": 64,
        "dtype": torch.float16,
        "latent": LATENT,
        "rope": ROPE,
    }
    said = {
        "compute capability 7.5": ({}, (7, 5), 65536),
        "3 query heads": ({"heads": 3}, (9, 0), 232448),
        "5 new tokens": ({"q_len": 5}, (9, 0), 232448),
        "a query in torch.float8_e4m3fn": ({"dtype": torch.float8_e4m3fn}, (9, 0), 232448),
        "a cache in torch.float8_e5m2": ({"cache": torch.float8_e5m2}, (9, 0), 232448),
        "each new token has a list": ({"sparse": True, "q_len": 2}, (9, 0), 232448),
        "latent and rope dims 48": ({"latent": 48}, (9, 0), 232448),
        "pages of 0": ({"page": 0}, (9, 0), 232448),
        "49152 bytes of shared memory": ({}, (8, 0), 49152),
    }
    assert ours.refusal(ours.Shape(**fine), (8, 0), 101376) is None
    for words, (change, capability, shared) in said.items():
        shape = ours.Shape(**fine | change)
        assert words in str(ours.refusal(shape, capability, shared)), words
        card = ours.Card(capability=capability, shared_memory=shared, processors=3)
        _refused(words, lambda shape=shape, card=card: ours.Decoder(shape, "cpu", 1, card=card))


def _refused(words: str, call: Callable[..., Any], *arguments: Any) -> None:
    said = "nothing"
    try:
        call(*arguments)
    except ValueError as error:
        said = str(error)
    assert words in said, (words, said)


if __name__ == "__main__":
    mended()
    sys.path.insert(0, sys.argv[1])
    for name in sys.argv[2:]:
        globals()[name]()
        print(name)
