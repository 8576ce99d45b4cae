"""What a server and its children hold of the memory of GPUs, as the driver tells it."""

from __future__ import annotations

from collections.abc import Iterable

from dspatch import process
from dspatch.errors import DspatchError

ASKED = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
WAIT = 30.0  # seconds


def held(pids: Iterable[int]) -> int | None:
    """Bytes that these processes hold of all cards; `None` without a driver that knows one of them."""
    try:
        done = process.run(ASKED, timeout=WAIT)
    except DspatchError:
        return None
    return of_table(done.stdout, frozenset(pids))


def of_table(text: str, pids: frozenset[int]) -> int | None:
    """The same of the program's answer: a line for each process and card, its pid and MiB."""
    rows = [line.split(",") for line in text.splitlines()]
    own = [
        int(row[1]) << 20
        for row in rows
        if len(row) == 2 and all(part.strip().isdigit() for part in row) and int(row[0]) in pids
    ]
    return sum(own) if own else None
