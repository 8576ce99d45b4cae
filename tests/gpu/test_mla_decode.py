"""The MLA decode kernels on a real card, against fp64, with everything unwritten poisoned.

    pytest -m gpu tests/gpu

Where dspatch is not installed, DSPATCH_MLA_KERNELS names the folder that
`benchmarks/mla_decode.py prepare` made.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

KERNELS = ["hopper", "portable"]


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rendered kernels."""
    torch = importlib.import_module("torch")
    assert torch.cuda.is_available(), "gpu tests were asked for, and torch sees no NVIDIA GPU"
    folder = Path(os.environ.get("DSPATCH_MLA_KERNELS") or tmp_path_factory.mktemp("kernels"))
    if not (folder / "mla_decode").exists():
        from tests.mla import rendered

        rendered.write(folder / "mla_decode")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("mla_decode")
    sys.path.remove(str(folder))


def check(
    decode: Any,
    lengths: Sequence[int],
    kernel: str,
    *,
    heads: int = 16,
    q_len: int = 1,
    page: int = 64,
    dtype: str = "bfloat16",
    seed: int = 0,
) -> None:
    """One step on the card has no fault, twice over the same buffers."""
    import torch

    from tests.mla import cases

    kind = getattr(torch, dtype)
    one = cases.step(
        lengths, heads=heads, q_len=q_len, page=page, dtype=kind, device="cuda", seed=seed
    )
    decoder = make(decode, kernel, heads=heads, q_len=q_len, page=page, dtype=kind)
    want = cases.truth(decode.reference, one)
    for _ in range(2):
        assert cases.faults(*one.decoded(decoder, max(lengths)), *want) == []


def make(decode: Any, kernel: str, *, max_batch: int = 600, **shape: Any) -> Any:
    """A decoder with the first choice of that kernel; its absence is skipped, and says so."""
    one = decode.Shape(**shape)
    card = decode.Card.of(importlib.import_module("torch").device("cuda"))
    fit = (one, card.capability, card.shared_memory)
    choice = next((c for c in decode.choices(*fit) if c.kernel == kernel), None)
    if choice is None:
        pytest.skip(f"{kernel} does not serve {one} on this card")
    return decode.Decoder(one, "cuda", max_batch, choice=choice)


LENGTHS = {
    "none": [0],
    "one": [1],
    "few": [64, 0, 1, 63, 65, 128],
    "long": [20000],
    "uneven": [4641, 45118, 1730, 1696, 0, 3, 9000],
    "many": [(37 * i) % 700 for i in range(500)],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", [16, 32, 128])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths(decode: Any, kernel: str, heads: int, lengths: str) -> None:
    check(decode, LENGTHS[lengths], kernel, heads=heads)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("page", [1, 8, 16, 24, 32, 64, 128, 256])
def test_pages(decode: Any, kernel: str, page: int) -> None:
    check(decode, [1000, 1, 0, 77, 3000], kernel, page=page)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("heads", "q_len"), [(1, 1), (2, 2), (4, 4), (8, 4), (16, 2), (16, 4), (128, 4)]
)
def test_new_tokens(decode: Any, kernel: str, heads: int, q_len: int) -> None:
    check(decode, [1000, 1, 0, 2, 65, 3000], kernel, heads=heads, q_len=q_len)


@pytest.mark.parametrize("kernel", KERNELS)
def test_float16(decode: Any, kernel: str) -> None:
    check(decode, [1000, 1, 0, 77, 3000], kernel, dtype="float16")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(decode: Any, kernel: str, seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.choice([0, 1, draw.randrange(6000)]) for _ in range(draw.randrange(1, 60))]
    shape = {
        "heads": draw.choice([1, 2, 4, 8, 16, 32, 64, 128]),
        "q_len": draw.randrange(1, 5),
        "page": draw.choice([16, 32, 64, 64, 128, 48]),
        "dtype": draw.choice(["bfloat16", "float16"]),
    }
    check(decode, lengths, kernel, **shape, seed=seed)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_captured_step_follows_the_lengths_of_its_replay(decode: Any, kernel: str) -> None:
    import torch

    from tests.mla import cases

    one = cases.step([900, 30, 4000], heads=16, device="cuda")
    decoder = make(decode, kernel, heads=16, q_len=1, page=64, dtype=torch.bfloat16)
    out, lse = one.result()

    def step() -> None:
        decoder.plan(one.lengths, one.table)
        decoder(one.q, one.cache, one.table, one.lengths, cases.SCALE, out, lse)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for lengths in ([900, 30, 4000], [1, 0, 3999], [0, 0, 0], [900, 29, 65]):
        one.lengths.copy_(torch.tensor(lengths))
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        assert cases.faults(out, lse, *cases.truth(decode.reference, one)) == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_length_beyond_the_table_is_refused_or_spoils_that_request_alone(
    decode: Any, kernel: str
) -> None:
    import torch

    from tests.mla import cases

    one = cases.step([100, 128, 50], heads=16, device="cuda")
    decoder = make(decode, kernel, heads=16, q_len=1, page=64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"129 tokens, but the block table holds 128"):
        decoder.plan(one.lengths, one.table, 129)
    one.lengths[1] = 129
    out, lse = one.decoded(decoder)
    assert out[1].isnan().all()
    assert lse[1].isnan().all()
    one.lengths[1] = 0
    want = cases.truth(decode.reference, one)
    rest = [0, 2]
    assert cases.faults(out[rest], lse[rest], want[0][rest], want[1][rest]) == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_offsets_past_32_bits(decode: Any, kernel: str) -> None:
    """A page beyond 2**31 elements of the cache."""
    import torch

    from tests.mla import cases

    one = cases.step([200, 70], heads=16, device="cuda")
    far = 2**31 // (64 * cases.WIDE) + 7
    cache = torch.empty(far + one.cache.shape[0], 64, cases.WIDE, dtype=one.q.dtype, device="cuda")
    cache[far:] = one.cache
    moved = cases.Step(q=one.q, cache=cache, table=one.table + far, lengths=one.lengths)
    decoder = make(decode, kernel, heads=16, q_len=1, page=64, dtype=torch.bfloat16)
    assert cases.faults(*moved.decoded(decoder), *cases.truth(decode.reference, one)) == []


PLANTED = {
    "the opening part goes to the wrong slot": (
        "plan.py",
        "2 * (first - 1) + (",
        "2 * (first - 1) + 1 - (",
    ),
    "parts averaged, not weighted": ("combine.py", "values * weight[:, None]", "values"),
    "rows past the end read": (
        "portable.py",
        "tl.minimum(token, length - 1) % PAGE",
        "token % PAGE",
    ),
    "rows past the end kept": ("hopper.py", "if length - tile * TILE < TILE:", "if length < 0:"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(
    decode: Any, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault, made in the rendered source, is seen by what the tests above look at."""
    file, find, text = PLANTED[fault]
    package = tmp_path / f"faulty_{list(PLANTED).index(fault)}"
    package.mkdir()
    for source in Path(decode.__file__).parent.glob("*.py"):
        content = source.read_text()
        if source.name == file:
            assert find in content
            content = content.replace(find, text)
        (package / source.name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    faulty = importlib.import_module(package.name)
    kernel = "hopper" if file == "hopper.py" else "portable"
    with pytest.raises(AssertionError):
        check(faulty, [70, 1, 900, 3000], kernel)
