"""The MLA decode kernels without a GPU: compiled for three cards, run through Triton's interpreter.

Triton 3.6, which the kernels for Hopper are written for, comes before the torch of an engine's
environment.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mla_sglang
from dspatch import process, variants
from dspatch.engines.environment import ensure, for_wheel
from dspatch.errors import ProcessError
from dspatch.series import layered
from dspatch.stages import releasedseries
from tests.e2e.test_series_faults import wheels
from tests.mla import rendered

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
# The interpreter of this Triton takes numpy's arrays of one element for numbers.
TRITON = ["triton==3.6.0", "numpy==2.2.6"]


@cache
def environment() -> tuple[Path, str]:
    """A Python with torch, and the folder that Triton is imported from."""
    triton = next((ensure("mla-triton", TRITON).path / "lib").glob("python*/site-packages"))
    return for_wheel("vllm", wheels("v0.27.1")[1]).python, str(triton)


def run(script: str, folder: Path, *arguments: str) -> str:
    """What a script of tests/mla prints about the kernels in a folder."""
    python, triton = environment()
    path = f"{triton}:{ROOT}"
    command = [python, "-W", "ignore", ROOT / "tests" / "mla" / script, folder, *arguments]
    return process.run(
        command, env={"PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder / "cache")}
    ).stdout


# Small enough for the interpreter.
TINY = replace(
    variants.variant("deepseek-v2-lite"), kv_lora_rank=64, qk_rope_head_dim=16, num_attention_heads=32
)  # fmt: skip


def small(folder: Path) -> Path:
    """The kernels rendered for a model small enough for the interpreter."""
    rendered.write(folder / "mla_decode", [TINY])
    return folder


# One of each generation that has no environment here; what they import of vLLM but MLA is not looked at.
GENERATIONS = [
    "v0.8.5", "v0.9.2", "v0.10.0", "v0.10.1", "v0.11.0", "v0.13.0", "v0.15.0", "v0.19.1",
]  # fmt: skip
MLA = [
    "vllm/v1/attention/backends/mla/common.py",
    "vllm/v1/attention/backends/mla/triton_mla.py",
    "vllm/model_executor/layers/attention/mla_attention.py",
]


# One of each generation of the sparse backends that ours stands on.
SPARSE = ["v0.13.0", "v0.20.2", "v0.25.1", "v0.27.1", "v0.32.0"]
SPARSE_MLA = [
    "vllm/attention/backends/abstract.py",
    "vllm/attention/backends/registry.py",
    "vllm/model_executor/layers/attention/mla_attention.py",
    "vllm/model_executor/layers/attention/sparse_mla_attention.py",
    "vllm/model_executor/warmup/jit_warmup.py",
    "vllm/model_executor/warmup/jit_warmup_triton_helper.py",
    "vllm/v1/attention/backend.py",
    "vllm/v1/attention/backends/mla/common.py",
    "vllm/v1/attention/backends/mla/flashattn_mla_sparse.py",
    "vllm/v1/attention/backends/mla/flashmla_sparse.py",
    "vllm/v1/attention/backends/mla/index_group.py",
    "vllm/v1/attention/backends/mla/sparse_utils.py",
    "vllm/v1/attention/backends/registry.py",
    "vllm/v1/attention/backends/utils.py",
    "vllm/v1/attention/ops/metadata.py",
]


def release(rev: str, folder: Path, sources: Sequence[str] = MLA) -> Path:
    """Some sources of a published release, patched, on disk."""
    with releasedseries.opened(layered("vllm"), [TINY]) as at:
        step = releasedseries.released(at, rev, "cuda").steps["mla-decode-kernels"]
        for path in dict.fromkeys([*sources, *(path for path in step.paths if "/mla" in path)]):
            data = step.after.read(path)
            if data is not None:
                (folder / rev / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / rev / path).write_bytes(data)
    return folder / rev


def held(script: str, *folders: Path) -> list[str]:
    """The releases whose backend a script finds as it should be, on the classes of the release itself."""
    return run(script, folders[0], *map(str, folders[1:])).split()


def test_older_backends_decode_on_the_base_classes_of_their_release(tmp_path: Path) -> None:
    made = [release(rev, tmp_path) for rev in GENERATIONS]
    assert held("backends.py", *made) == GENERATIONS


@pytest.mark.parametrize(
    ("find", "text"),
    [("(q_nope, q_pe), dim", "(q_pe, q_nope), dim"), ("self.decoder.plan(", "len((")],
)
def test_a_planted_fault_of_an_older_backend_is_caught(
    find: str, text: str, tmp_path: Path
) -> None:
    made = release("v0.10.1", tmp_path)
    plant(made / "vllm/v1/attention/backends/mla/dspatch_mla.py", find, text)
    with pytest.raises(ProcessError, match="Error"):
        held("backends.py", made)


@pytest.fixture(scope="module")
def newest_sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the newest release."""
    return release(SPARSE[-1], tmp_path_factory.mktemp("sparse"), SPARSE_MLA)


def test_sparse_backends_decode_on_the_classes_of_their_release(
    newest_sparse: Path, tmp_path: Path
) -> None:
    made = [release(rev, tmp_path, SPARSE_MLA) for rev in SPARSE[:-1]]
    assert held("sparse_backends.py", *made, newest_sparse) == SPARSE


@pytest.mark.parametrize(
    ("find", "text"),
    [
        ("starts[request + 1] - 1 - places", "starts[request + 1] - places"),
        (".masked_fill(places >= starts[-1], 0)", ""),
        ("        self._plan(metadata, metadata.seq_lens)\n", ""),
        ("capability.major == 9", "capability.major >= 9"),
    ],
    ids=["a token short", "what fills up a graph", "a draft's step", "another card"],
)
def test_a_planted_fault_of_a_sparse_backend_is_caught(
    find: str, text: str, newest_sparse: Path, tmp_path: Path
) -> None:
    made = Path(shutil.copytree(newest_sparse, tmp_path / "made"))
    plant(made / "vllm/v1/attention/backends/mla/dspatch_mla_sparse.py", find, text)
    with pytest.raises(ProcessError, match="Error"):
        held("sparse_backends.py", made)


# At 32 rows the Hopper kernels keep some values in local memory: the one for bf16 a few scalars of its
# outer loop, the one for fp8 more; it was measured to be faster than the portable kernel, which has none.
FEW_SCALARS, MORE_SCALARS = 32, 128

CHECKS = [
    "heads", "pages", "new_tokens", "fp8", "every_fp8", "sparse", "alone", "beyond", "plans", "refusals",
]  # fmt: skip


def test_numbers_in_the_interpreter(tmp_path: Path) -> None:
    assert run("interpreted.py", small(tmp_path), *CHECKS).split() == CHECKS


PLANTED = {
    "a later part in the wrong slot": ("plan.py", "2 * (first - 1) + (", "2 * first + (", "plans"),
    "the last share forgotten": ("plan.py", "last = (stop - 1) // share", "last = (stop - 1) // share - 1", "plans"),
    "parts averaged, not weighted": ("combine.py", "values * weight[:, None]", "values", "heads"),
    "rows past the end read": ("portable.py", "tl.minimum(token, length - 1) % PAGE", "token % PAGE", "heads"),
    "new tokens see each other": ("portable.py", "(ROWS // HEADS - 1 - row // HEADS)", "0", "new_tokens"),
    "the page is not fetched ahead": ("portable.py", "tile * TILE + TILE, length", "tile * TILE, length", "pages"),
    "the even columns for the odd": ("e4m3.py", "pairs if ODD_ONES else pairs << 8", "pairs << 8", "every_fp8"),
    "the scale of fp8 forgotten": ("portable.py", "over = over * unit", "over = over * 1.0", "fp8"),
    "a place without a slot taken": ("portable.py", "seen = seen & (page >= 0)[None, :]", "seen = seen", "sparse"),
    "parts of one alone by the batch": ("plan.py", "PARTS=self.alone", "PARTS=self.alone if len(lengths) > 1 else 1",
        "alone"),
    "a length beyond the table taken": ("portable.py", "asked > capacity", "asked < 0", "beyond"),
}  # fmt: skip


def plant(source: Path, find: str, text: str) -> None:
    """Make a fault in a file, at the one place that it is meant for."""
    content = source.read_text()
    assert content.count(find) == 1
    source.write_text(content.replace(find, text))


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught_in_the_interpreter(fault: str, tmp_path: Path) -> None:
    file, find, text, check = PLANTED[fault]
    plant(small(tmp_path) / "mla_decode" / file, find, text)
    with pytest.raises(ProcessError, match="Error"):
        run("interpreted.py", tmp_path, check)


def test_sglangs_kernel_is_right_as_the_benchmark_calls_it(tmp_path: Path) -> None:
    """A peer is timed only after this; a fault planted in its source is seen."""
    rendered.write(tmp_path / "mla_decode")
    mla_sglang.fetch(tmp_path, [])
    assert run("peer.py", tmp_path).split() == ["sglang"]
    source = tmp_path / "sglang" / "decode_attention.py"
    content = source.read_text()
    assert "kv_loc[None, :] * stride_buf_kbs" in content
    source.write_text(
        content.replace("kv_loc[None, :] * stride_buf_kbs", "offs_n[None, :] * stride_buf_kbs")
    )
    with pytest.raises(ProcessError, match="AssertionError"):
        run("peer.py", tmp_path)


TURNS = ["parts", "blocks", "pages", "ahead"]


def test_the_roles_of_the_kernel_for_64_rows_take_turns(tmp_path: Path) -> None:
    """On a CPU, a thread for each: right to the criteria of fp64, and nobody waits for what never comes."""
    rendered.write(tmp_path / "mla_decode")
    assert run("turns.py", tmp_path, *TURNS).split() == TURNS


OUT_OF_TURN = {
    "the unit of a part forgotten": ("unit * factor, mask", "factor, mask", "parts"),
    "rows past the end kept": ("_clear_unwritten(even, length - token)", "_clear_unwritten(even, TILE)", "parts"),
    "the right half scaled by the wrong peak": ("shrink = shrink * shrink_even", "shrink = shrink", "blocks"),
    "one of two pieces of a page twice": ("at % PER_PAGE * HEIGHT", "0", "pages"),
    "the same tile asked for twice": ("2 * pair + 2, 0) + block % 2", "2 * pair + 2, 0)", "ahead"),
    "a place that nobody frees": ("empty.index(ODD_LEFT), count=1)", "empty.index(ODD_LEFT), pred=False)", "blocks"),
}  # fmt: skip


@pytest.mark.parametrize("fault", OUT_OF_TURN)
def test_planted_fault_of_the_kernel_for_64_rows_is_caught(fault: str, tmp_path: Path) -> None:
    find, text, check = OUT_OF_TURN[fault]
    rendered.write(tmp_path / "mla_decode")
    plant(tmp_path / "mla_decode" / "seesaw.py", find, text)
    with pytest.raises(ProcessError, match="Error"):
        run("turns.py", tmp_path, check)


def compiled(folder: Path) -> list[dict[str, Any]]:
    """Every kernel of the published models, compiled for every card."""
    rendered.write(folder / "mla_decode")
    found: list[dict[str, Any]] = json.loads(run("compiled.py", folder))
    return found


def wrong(kernel: dict[str, Any]) -> list[str]:
    """What is wrong with a compiled kernel."""
    # With smaller pages than its tile, 64 rows a program would not fit in registers.
    many_rows = kernel["heads"] > 32 and kernel["page"] % 64 == 0 and not kernel["fp8"]
    hopper = kernel["card"] == "sm_90" and (kernel["kernel"] != "portable" or many_rows)
    allowed = (MORE_SCALARS if kernel["fp8"] and kernel["heads"] == 32 else FEW_SCALARS) * (
        kernel["kernel"] == "hopper"
    )
    said = {
        "spills": kernel["stack"] > allowed,
        "needs more shared memory than the card has": kernel["shared"] > kernel["limit"],
        "needs other shared memory than choice.py says": kernel["shared"] != kernel["claimed"],
        "no asynchronous copy": kernel["asynchronous_copies"] == 0,
        "no tensor core": kernel["wgmma"] + kernel["mma"] == 0,
        "wgmma expected": hopper and kernel["wgmma"] == 0,
        "wgmma waits for each": kernel["wgmma_waits"] * 4 > kernel["wgmma"] > 0,
        "its loop waits for all copies": kernel["stages"] > 2
        and 0 in kernel["copies_in_flight"][:1],
    }
    return [what for what, holds in said.items() if holds]


def test_every_kernel_compiles_for_its_cards_without_spills(tmp_path: Path) -> None:
    kernels = compiled(tmp_path)
    assert {(k["card"], k["kernel"]) for k in kernels} == {
        ("sm_80", "portable"), ("sm_89", "portable"), ("sm_90", "portable"), ("sm_90", "hopper"),
        ("sm_90", "seesaw"),
    }  # fmt: skip
    said = {
        f"{k['card']} {k['kernel']} {k['heads']} {k['fp8']} {k['sparse']}": w
        for k in kernels
        if (w := wrong(k))
    }
    assert said == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stack": 40}, "spills"),
        ({"shared": 240000, "claimed": 240000}, "needs more shared memory than the card has"),
        ({"claimed": 1}, "needs other shared memory than choice.py says"),
        ({"wgmma": 0, "mma": 9}, "wgmma expected"),
        ({"wgmma_waits": 60}, "wgmma waits for each"),
        ({"copies_in_flight": [0, 0]}, "its loop waits for all copies"),
        ({"asynchronous_copies": 0}, "no asynchronous copy"),
    ],
)
def test_each_fault_of_a_compiled_kernel_is_told(change: dict[str, Any], said: str) -> None:
    fine = {
        "card": "sm_90", "kernel": "hopper", "heads": 16, "page": 64, "fp8": False, "stack": 0, "shared": 9,
        "limit": 232448, "claimed": 9, "asynchronous_copies": 9, "wgmma": 68, "mma": 0, "wgmma_waits": 2, "stages": 8,
        "copies_in_flight": [],
    }  # fmt: skip
    assert wrong(fine) == []
    assert wrong(fine | change) == [said]
