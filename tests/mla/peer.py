"""SGLang's kernel as the benchmark calls it, through Triton's interpreter on a CPU, against fp64.

    python peer.py FOLDER-OF-sglang-AND-mla_decode

Requests of several pages, one that ends within a page, and one that is cut into parts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch


def main(folder: Path) -> None:
    """Nothing is wrong with what it makes of a step."""
    sys.path.insert(0, str(folder))
    import mla_decode as ours

    from benchmarks import mla_sglang
    from tests.mla import cases

    card = SimpleNamespace(multi_processor_count=4, major=8)
    torch.cuda.get_device_properties = lambda _: card
    peer = mla_sglang.SGLang(folder)
    peer.most = 4  # it loops over all parts that there could be, and the interpreter is slow
    step = cases.step([70, 130, 64], heads=16, dtype=torch.float16)
    out, _ = peer.dense(step, 130)[mla_sglang.NAME]()
    want, lse = cases.truth(ours.reference, step)
    assert (found := cases.faults(out, lse, want, lse)) == [], found
    print("sglang")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
