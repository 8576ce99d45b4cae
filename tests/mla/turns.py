"""Run seesaw.py, whose warp roles take turns, on a CPU, against fp64.

    python turns.py FOLDER-OF-mla_decode CHECK...

Its Gluon is gluon_cpu.py; the plan and the merging of parts run through Triton's interpreter. Each
check prints its name when it holds; a fault is an AssertionError or a TimeoutError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from tests.mla import cases, gluon_cpu

PROCESSORS = 4


def right(lengths: Sequence[int], heads: int, q_len: int = 1, page: int = 64) -> Any:
    """A step has no fault."""
    import mla_decode as ours

    card = ours.Card(capability=(9, 0), shared_memory=232448, processors=PROCESSORS)
    one = cases.step(lengths, heads=heads, q_len=q_len, page=page, dtype=torch.float16)
    shape = ours.Shape(**one.shape)
    fitting = ours.choices(shape, card.capability, card.shared_memory)
    choice = next(choice for choice in fitting if choice.kernel == "seesaw")
    decoder = ours.Decoder(shape, "cpu", len(lengths), card=card, choice=choice)
    got = one.decoded(decoder)
    assert (found := cases.faults(*got, *cases.truth(ours.reference, one))) == [], found
    return one


def parts() -> None:
    """Requests that are cut, none, one whole; a row block that is not full."""
    right([190, 0, 1, 300], heads=16)


def blocks() -> None:
    """Two row blocks, and more than one pair of tiles."""
    right([40, 257], heads=128)


def pages() -> None:
    """Pages smaller and larger than a tile; several new tokens see each other in order."""
    right([90, 257], heads=16, page=16)
    right([2, 190, 65], heads=4, q_len=4, page=128)


def ahead() -> None:
    """Of tiles that are not a worker's first pair, every row was asked for ahead of time, and nothing else."""
    gluon_cpu.announced.clear()
    length = 1000
    one = right([length], heads=128)
    cache = one.cache.view(-1).numpy()
    lines = [at for buffer, at in gluon_cpu.announced if np.shares_memory(buffer, cache)]
    rows = np.unique(np.concatenate([at.ravel() for at in lines]) // cases.WIDE)
    # Two workers have four pairs of the request's eight each: its pages of 64 are tiles.
    wanted = [one.table[0, tile] * 64 + row for pair in (1, 2, 3, 5, 6, 7) for tile in (2 * pair, 2 * pair + 1)
              for row in range(64) if tile * 64 + row < length]  # fmt: skip
    assert sorted(int(row) for row in wanted) == rows.tolist()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    with gluon_cpu.in_place_of_gluon():
        from mla_decode import hopper, seesaw  # noqa: F401
    for name in sys.argv[2:]:
        globals()[name]()
        print(name, flush=True)
