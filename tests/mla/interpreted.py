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

LATENT, ROPE = 64, 16
CARD = {"capability": (8, 0), "shared_memory": 232448, "processors": 3}


def decode(lengths: Sequence[int], heads: int, q_len: int, page: int) -> None:
    """One step has no fault."""
    import mla_decode as ours

    from tests.mla import cases

    dims = {"latent": LATENT, "rope": ROPE}
    made = {"heads": heads, "q_len": q_len, "page": page, "dtype": torch.float16}
    one = cases.step(lengths, **made, **dims)
    decoder = ours.Decoder(ours.Shape(**made, **dims), "cpu", 8, card=ours.Card(**CARD))
    assert decoder.choice.kernel == "portable"
    assert (
        found := cases.faults(*one.decoded(decoder), *cases.truth(ours.reference, one, LATENT))
    ) == [], found


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


def beyond() -> None:
    """A length beyond the table gives NaN, for that request alone; known on the host, a message."""
    import mla_decode as ours

    from tests.mla import cases

    dims = {"latent": LATENT, "rope": ROPE, "dtype": torch.float16}
    one = cases.step([20, 16, 5], heads=4, page=16, **dims)
    shape = ours.Shape(heads=4, q_len=1, page=16, **dims)
    decoder = ours.Decoder(shape, "cpu", 8, card=ours.Card(**CARD))
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
        )


def _plan(lengths: list[int], workers: int, tile: int, fixed: int, floor: int) -> None:
    from mla_decode.plan import Plan

    sizes = {"rows": 1, "latent": 1, "tile": tile, "fixed": fixed, "floor": floor}
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
        "float8_e4m3fn": ({"dtype": torch.float8_e4m3fn}, (9, 0), 232448),
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
    sys.path.insert(0, sys.argv[1])
    for name in sys.argv[2:]:
        globals()[name]()
        print(name)
