"""The templates of the MLA decode kernels: what they are rendered for, and the tests that need a GPU."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspatch import variants
from dspatch.edits import apply_edit
from dspatch.onto import rendered_edit
from dspatch.render import Context
from dspatch.series import layered
from tests.mla import rendered

ROOT = Path(__file__).parents[2]


def constants(source: Path) -> dict[str, Any]:
    """The literal constants of a module."""
    found = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def test_every_module_is_python(tmp_path: Path) -> None:
    rendered.write(tmp_path)
    for module in tmp_path.glob("*.py"):
        assert ast.get_docstring(ast.parse(module.read_text())), module.name


def test_heads_and_dims_are_those_of_the_job_s_models(tmp_path: Path) -> None:
    lite = variants.variant("deepseek-v2-lite")
    rendered.write(tmp_path / "lite", [lite])
    found = constants(tmp_path / "lite" / "choice.py")
    assert found["GEOMETRIES"] == ((512, 64),)
    assert found["HEADS"] == (1, 2, 4, 8, 16)
    odd = replace(lite, kv_lora_rank=256, qk_rope_head_dim=32, num_attention_heads=20)
    rendered.write(tmp_path / "two", [odd, variants.variant("deepseek-v3")])
    found = constants(tmp_path / "two" / "choice.py")
    assert found["GEOMETRIES"] == ((256, 32), (512, 64))
    assert found["HEADS"] == (5, 8, 10, 16, 20, 32, 64, 128)


# Bytes of local memory that a kernel may keep: a few scalars of its outer loop.
MAY_SPILL = 64

BACKEND = "vllm.v1.attention.backends.mla.dspatch_mla"
# The function that orders vLLM's backends, as far as the edit of its generation meets it.
PRIORITIES = """
def _get_backend_priorities(
    use_mla, device_capability, num_heads=None, kv_cache_dtype=None, {more}
):
    \"""Get backend priorities with lazy import to avoid circular dependency.\"""

    return ["upstream's"]
"""
GENERATIONS = {
    "!cuda_orders_backends_by_head_size": "use_non_causal=False",
    "cuda_orders_backends_by_head_size": "use_non_causal=False, head_size=None, use_mm_prefix=False",
}


def priorities(when: str) -> Any:
    """The patched function of a generation, its list upstream's alone."""
    patch = layered("vllm").patch("mla-decode-kernels")
    (edit,) = (each for each in patch.edits if when in each.when)
    made = rendered_edit(patch, edit, Context(traits={}, variants=[]))  # type: ignore[arg-type]
    before = PRIORITIES.format(more=GENERATIONS[when]).encode()
    engine: dict[str, Any] = {"AttentionBackendEnum": SimpleNamespace(DSPATCH_MLA="ours")}
    exec(compile(apply_edit(before, made), edit.file, "exec"), engine)
    return engine["_get_backend_priorities"]


@pytest.mark.parametrize("when", GENERATIONS)
@pytest.mark.parametrize(
    ("module", "order"),
    [
        (None, ["upstream's"]),  # what stands as None cannot be imported
        (SimpleNamespace(), ["upstream's"]),  # there is no such name in it
        (SimpleNamespace(measured_faster=lambda *_: False), ["upstream's"]),
        (SimpleNamespace(measured_faster=lambda *_: True), ["ours", "upstream's"]),
    ],
)
def test_a_backend_that_cannot_be_imported_leaves_the_others(
    module: Any, order: list[str], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, BACKEND, module)
    ordered = priorities(when)
    assert ordered(True, (9, 0), 16) == order
    assert ordered(False, (9, 0), 16) == ["upstream's"]


@pytest.mark.parametrize("when", GENERATIONS)
def test_the_backend_is_asked_for_card_heads_and_cache(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    faster = SimpleNamespace(measured_faster=lambda *of: asked.append(of))
    monkeypatch.setitem(sys.modules, BACKEND, faster)
    priorities(when)(True, (9, 0), 16, "fp8")
    assert asked == [((9, 0), 16, "fp8")]


CHOOSES = """
class CudaPlatformBase:
    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend, head_size, dtype, kv_cache_dtype, block_size, use_v1, use_mla{more}
    ):
        if use_mla:
            return f"upstream's MLA, {{selected_backend}}"
        return "upstream's"
"""


def chosen(
    asked: str | None, *, card: int = 90, sparse_is_asked: bool = True, **changed: Any
) -> tuple[str, list[str]]:
    """Which backend the patched platform of the older releases takes, and what it warns of."""
    patch = layered("vllm").patch("mla-decode-kernels")
    (edit,) = (
        each for each in patch.edits if each.symbol == "CudaPlatformBase.get_attn_backend_cls"
    )
    context = Context(traits={"cuda_platform_is_asked_for_sparse": sparse_is_asked}, variants=[])  # type: ignore[arg-type]
    warned: list[str] = []
    torch = SimpleNamespace(float16="fp16", bfloat16="bf16")
    backends = SimpleNamespace(DSPATCH_MLA="DSPATCH_MLA")
    engine: dict[str, Any] = {
        "torch": torch, "_Backend": backends, "logger": SimpleNamespace(warning=warned.append),
    }  # fmt: skip
    before = CHOOSES.format(more=", use_sparse" if sparse_is_asked else "").encode()
    exec(
        compile(apply_edit(before, rendered_edit(patch, edit, context)), edit.file, "exec"), engine
    )
    platform = engine["CudaPlatformBase"]
    platform.has_device_capability = lambda wanted: wanted <= card
    words = {
        "head_size": 576, "block_size": 64, "use_v1": True, "use_mla": True, "kv_cache_dtype": "auto", "dtype": "bf16",
        **({"use_sparse": False} if sparse_is_asked else {}),
    }  # fmt: skip
    return platform.get_attn_backend_cls(asked, **(words | changed)), warned


@pytest.mark.parametrize("sparse", [True, False])
def test_older_releases_take_the_backend_that_was_asked_for(sparse: bool) -> None:
    took = {
        asked: chosen(asked, sparse_is_asked=sparse)
        for asked in ("DSPATCH_MLA", "TRITON_MLA", None)
    }
    assert took == {
        "DSPATCH_MLA": (BACKEND + ".DspatchMLABackend", []),
        "TRITON_MLA": ("upstream's MLA, TRITON_MLA", []),
        None: ("upstream's MLA, None", []),
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"use_v1": False}, {"kv_cache_dtype": "fp8"}, {"dtype": "fp32"}, {"use_sparse": True}, {"card": 75},
    ],
)  # fmt: skip
def test_older_releases_choose_by_themselves_where_it_cannot_serve(changed: dict[str, Any]) -> None:
    took, warned = chosen("DSPATCH_MLA", **changed)
    assert took == "upstream's MLA, None"
    assert len(warned) == 1


def test_shared_memory_elsewhere_is_what_other_releases_of_triton_compiled(tmp_path: Path) -> None:
    """The table of elsewhere.py, held against the committed proof, kernel by kernel."""
    rendered.write(tmp_path)
    module: dict[str, Any] = {}
    exec((tmp_path / "elsewhere.py").read_text(), module)
    proof = json.loads((ROOT / "docs" / "proofs" / "mla-decode-tritons.json").read_text())
    compiled: dict[str, dict[tuple[int, ...], int]] = {}
    for release, kernels in proof.items():
        most = compiled.setdefault(release.rpartition(".")[0], {})
        unfit = set()
        for one in (each for each in kernels if "block" in each):
            sizes = tuple(one[name] for name in ("block", "tile", "stages", "warps"))
            most[sizes] = max(most.get(sizes, 0), one["shared"])
            if one["stack"] > MAY_SPILL:
                unfit.add(sizes)
        for sizes in unfit:
            del most[sizes]
    assert module["_SHARED"] == compiled
    for release, most in compiled.items():
        for sizes, needed in most.items():
            assert module["shared"](release + ".1", False, sizes, 5) == needed
        assert module["shared"](release + ".1", True, sizes, 5) > 1 << 20
        assert module["shared"](release + ".1", False, (1, 1, 1, 1), 5) > 1 << 20
    assert module["shared"]("3.6.0", False, (1, 1, 1, 1), 5) == 5


def pytest_says(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "tests/gpu",
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_gpu_tests_are_left_out_and_counted() -> None:
    done = pytest_says("--collect-only", "-m", "not e2e")
    assert done.returncode == 5  # no test was run
    assert " deselected" in done.stdout


def test_gpu_tests_that_are_asked_for_fail_where_there_is_no_gpu() -> None:
    done = pytest_says("-m", "gpu", "-k", "test_float16", "-x")
    assert done.returncode == 1
    assert "torch" in done.stdout
