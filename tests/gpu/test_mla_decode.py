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

KERNELS = ["hopper", "seesaw", "portable"]


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
    fp8: bool = False,
    most: int = 0,
    alone: bool = False,
) -> None:
    """One step on the card has no fault, twice over the same buffers; most: of slots, if sparse."""
    one = step(lengths, heads, q_len, page, dtype, seed, fp8, most)
    decoder = make_for(decode, kernel, one, alone=alone)
    right(decode, one, decoder)


def step(
    lengths: Sequence[int],
    heads: int,
    q_len: int,
    page: int,
    dtype: str,
    seed: int,
    fp8: bool,
    most: int,
) -> Any:
    """A step of those sizes on the card."""
    import torch

    from tests.mla import cases

    kind = getattr(torch, dtype)
    shape = {"heads": heads, "q_len": q_len, "page": page, "dtype": kind, "fp8": fp8}
    one = cases.step(lengths, **shape, device="cuda", seed=seed)
    return cases.sparse(one, most, seed=seed) if most else one


def right(decode: Any, one: Any, decoder: Any) -> None:
    """A decoder has no fault in a step, twice."""
    from tests.mla import cases

    want = cases.truth(decode.reference, one)
    for _ in range(2):
        got = one.decoded(decoder, int(one.lengths.max()))
        assert cases.faults(*got, *want) == []


def make_for(decode: Any, kernel: str | None, one: Any, **more: Any) -> Any:
    """A decoder for a step, with the first choice of that kernel or of all; its absence is skipped, and says so."""
    shape = decode.Shape(**one.shape)
    card = decode.Card.of(importlib.import_module("torch").device("cuda"))
    fitting = decode.choices(shape, card.capability, card.shared_memory)
    choice = next((c for c in fitting if kernel in (None, c.kernel)), None)
    if choice is None:
        pytest.skip(f"{kernel} does not serve {shape} on this card")
    return decode.Decoder(shape, "cuda", 600, choice=choice, **more)


LENGTHS = {
    "none": [0],
    "one": [1],
    "few": [64, 0, 1, 63, 65, 128],
    "long": [20000],
    "uneven": [4641, 45118, 1730, 1696, 0, 3, 9000],
    "many": [(37 * i) % 700 for i in range(500)],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", [16, 32, 64, 128])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths(decode: Any, kernel: str, heads: int, lengths: str) -> None:
    check(decode, LENGTHS[lengths], kernel, heads=heads)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("page", [1, 8, 16, 24, 32, 64, 128, 256])
@pytest.mark.parametrize("heads", [16, 128])
def test_pages(decode: Any, kernel: str, heads: int, page: int) -> None:
    check(decode, [1000, 1, 0, 77, 3000], kernel, heads=heads, page=page)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("heads", "q_len"), [(1, 1), (2, 2), (4, 4), (8, 4), (16, 2), (16, 4), (128, 4)]
)
def test_new_tokens(decode: Any, kernel: str, heads: int, q_len: int) -> None:
    check(decode, [1000, 1, 0, 2, 65, 3000], kernel, heads=heads, q_len=q_len)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", [16, 32, 64, 128])
def test_float16(decode: Any, kernel: str, heads: int) -> None:
    check(decode, [1000, 1, 0, 77, 3000], kernel, heads=heads, dtype="float16")


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
@pytest.mark.parametrize("heads", [1, 16, 32, 128])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_fp8(decode: Any, kernel: str, heads: int, lengths: str) -> None:
    check(decode, LENGTHS[lengths], kernel, heads=heads, fp8=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("page", [1, 16, 24, 128])
def test_fp8_in_other_pages(decode: Any, kernel: str, page: int) -> None:
    check(decode, [1000, 1, 0, 77, 3000], kernel, page=page, q_len=2, heads=8, fp8=True)


@pytest.mark.parametrize("native", [True, False])
def test_every_number_of_fp8(decode: Any, native: bool) -> None:
    from tests.mla import converted

    assert converted.faults("cuda", native=native) == []


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("heads", [16, 32, 128])
@pytest.mark.parametrize("most", [1, 100, 2048])
def test_sparse(decode: Any, heads: int, most: int, fp8: bool) -> None:
    check(decode, [5000, 1, 0, 77, 3000, 2048], "portable", heads=heads, most=most, fp8=fp8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("heads", "most"), [(16, 0), (32, 0), (128, 0), (16, 2048)])
def test_one_alone_has_the_bits_that_it_has_in_any_batch(
    decode: Any, kernel: str, heads: int, most: int, fp8: bool
) -> None:
    import torch

    one = step([4641, 20000, 1, 0, 900, 257, 256], heads, 1, 64, "bfloat16", 0, fp8, most)
    decoder = make_for(decode, kernel, one, alone=True)
    right(decode, one, decoder)
    out, lse = one.decoded(decoder)
    for batch in ([0], [1], [4, 0], list(range(7)) * 9):
        again, lse_again = one.of(batch).decoded(decoder)
        assert torch.equal(again, out[batch])
        assert torch.equal(lse_again, lse[batch])


def test_planted_fault_a_plan_that_looks_at_the_batch_is_seen(decode: Any) -> None:
    """Sharing the workers among all, which is not invariant, gives other bits."""
    import torch

    one = step([4641, 20000, 1, 0, 900, 257, 256], 16, 1, 64, "bfloat16", 0, False, 0)
    decoder = make_for(decode, "portable", one)
    out, _ = one.decoded(decoder)
    assert not torch.equal(one.of([1]).decoded(decoder)[0], out[[1]])


# Forty random steps each of twenty-five shapes; the shapes are few, as each is compiled.
MANY = [
    {"heads": heads, "q_len": q_len, "page": page, "dtype": dtype, "fp8": fp8, "most": most, "alone": alone}
    for heads, q_len, page, dtype, fp8, most, alone in [
        (16, 1, 64, "bfloat16", False, 0, False),
        (16, 1, 64, "bfloat16", True, 0, False),
        (16, 1, 64, "bfloat16", False, 512, False),
        (16, 1, 64, "bfloat16", True, 512, False),
        (16, 1, 64, "bfloat16", False, 0, True),
        (16, 1, 64, "bfloat16", True, 0, True),
        (16, 1, 64, "bfloat16", False, 512, True),
        (16, 2, 16, "bfloat16", False, 0, False),
        (16, 2, 16, "bfloat16", True, 0, False),
        (16, 1, 48, "float16", False, 0, False),
        (16, 1, 48, "float16", True, 0, False),
        (8, 4, 64, "bfloat16", False, 0, True),
        (8, 4, 64, "bfloat16", True, 0, True),
        (4, 3, 128, "float16", False, 0, False),
        (4, 3, 128, "float16", True, 0, False),
        (32, 1, 64, "bfloat16", False, 0, False),
        (32, 1, 64, "bfloat16", True, 0, False),
        (32, 1, 32, "bfloat16", False, 300, False),
        (64, 1, 64, "bfloat16", False, 0, False),
        (64, 1, 64, "bfloat16", True, 0, False),
        (128, 1, 64, "bfloat16", False, 0, False),
        (128, 1, 64, "bfloat16", True, 0, False),
        (128, 1, 64, "bfloat16", False, 512, False),
        (128, 1, 64, "bfloat16", False, 0, True),
        (128, 4, 64, "float16", False, 0, False),
    ]
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(MANY)))
def test_a_thousand_random_steps(decode: Any, index: int) -> None:
    """By the kernel that is chosen; one decoder for forty steps."""
    shape = dict(MANY[index])
    alone = shape.pop("alone")
    draw = random.Random(index)
    decoder: Any = None
    for seed in range(40):
        longest = draw.choice([1, 80, 1000, 9000])
        lengths = [draw.randrange(longest + 1) for _ in range(draw.choice([1, 2, 7, 30, 90]))]
        one = step(lengths, seed=seed, **shape)
        decoder = decoder or make_for(decode, None, one, alone=alone)
        right(decode, one, decoder)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_captured_step_follows_the_lengths_of_its_replay(decode: Any, kernel: str) -> None:
    import torch

    from tests.mla import cases

    one = cases.step([900, 30, 4000], heads=16, device="cuda")
    decoder = make_for(decode, kernel, one)
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
    from tests.mla import cases

    one = cases.step([100, 128, 50], heads=16, device="cuda")
    decoder = make_for(decode, kernel, one)
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
    decoder = make_for(decode, kernel, moved)
    assert cases.faults(*moved.decoded(decoder), *cases.truth(decode.reference, one)) == []


# File, text, what it becomes, and the step that shows it.
PLANTED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "the opening part goes to the wrong slot": (
        "plan.py", "2 * (first - 1) + (", "2 * (first - 1) + 1 - (", {},
    ),
    "parts averaged, not weighted": ("combine.py", "values * weight[:, None]", "values", {}),
    "rows past the end read": (
        "portable.py", "tl.minimum(token, length - 1) % PAGE", "token % PAGE", {},
    ),
    "a place without a slot taken": (
        "portable.py", "seen = seen & (page >= 0)[None, :]", "seen = seen", {"most": 2000},
    ),
    "the even columns for the odd": ("e4m3.py", "0x4431", "0x4420", {"fp8": True}),
    "rows past the end of fp8 kept": (
        "hopper_fp8.py", "if length - tile * TILE < TILE:", "if length < 0:", {"fp8": True},
    ),
    "the scale of fp8 forgotten": (
        "portable.py", "over = over * unit", "over = over * 1.0", {"fp8": True},
    ),
    "rows past the end kept": (
        "hopper.py", "if length - tile * TILE < TILE:", "if length < 0:", {"heads": 32},
    ),
    "rows past the end of a pair kept": (
        "seesaw.py", "if length - token < TILE:", "if length < 0:", {"heads": 128},
    ),
    "the unit of a part forgotten": ("seesaw.py", "unit * factor, mask", "factor, mask", {"heads": 128}),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(
    decode: Any, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault, made in the rendered source, is seen by what the tests above look at."""
    file, find, text, shape = PLANTED[fault]
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
    module = file.removesuffix("_fp8.py").removesuffix(".py")
    kernel = module if module in KERNELS else "portable"
    with pytest.raises(AssertionError):
        check(faulty, [70, 1, 900, 3000], kernel, **shape)
