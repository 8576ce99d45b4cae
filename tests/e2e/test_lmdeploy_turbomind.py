"""DeepSeek-V2 on TurboMind from v0.14.0: each pin's patched conversion against transformers, without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dspatch import checkout, pins, process, treefiles, variants
from dspatch.apply import apply_series
from dspatch.conformance import oracle, small
from dspatch.errors import ProcessError
from dspatch.series import layered
from dspatch.stages.request import served

pytestmark = pytest.mark.e2e

WORKER = Path(__file__).parent / "turbomind" / "convert.py"
# The engine has one router in groups: 160 experts in 8 groups.
GROUPS = {"n_routed_experts": 160, "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3}
SIZES: dict[str, dict[str, int]] = {
    "deepseek-v2-lite": {},
    "deepseek-v2": {**GROUPS, "moe_intermediate_size": 32},
}
DIRECT = ["kv_a_layernorm", "kv_a_proj", "q_proj", "wo"]
LOW_RANK = ["kv_a_layernorm", "kv_a_proj", "q_a_layernorm", "q_a_proj", "q_b_proj", "wo"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The patched Python of a pin's TurboMind, by revision."""

    @cache
    def patched(rev: str) -> Path:
        pristine = checkout.checkout(pins.load("lmdeploy", rev))
        done = apply_series(layered("lmdeploy"), pristine, target="cuda", variants=served(()))
        folder = tmp_path_factory.mktemp(rev)
        files = treefiles.of_tree(pristine.repo, done.tree, ["lmdeploy/turbomind"])
        for path in files.paths():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files.read(path) or b"")
        return folder

    return patched


def converted(tree: Path, name: str, folder: Path, **changes: Any) -> dict[str, Any]:
    config = {**small.shrunk(variants.variant(name)), "num_hidden_layers": 2, **SIZES[name]}
    given = folder / "small.json"
    given.write_text(json.dumps({**config, **changes}))
    python = oracle.ensure().python
    done = process.run(
        [python, str(WORKER), str(tree), str(given)], env={"PYTHONPATH": str(oracle.WORKERS)}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def judge(found: dict[str, Any], exempt: tuple[str, ...] = ()) -> None:
    """Everything was read, and is what both oracles have; transformers reckons RoPE in float32."""
    # The embedding is read without being taken out, by upstream's own code.
    assert found["unread"] == ["model.embed_tokens.weight"]
    assert found["feed_forward"] < 1e-13
    assert max(found["attention"], found["logits"]) < 1e-12
    assert found["transformers"] < 2e-6
    missed = {name for name, off in found["faults"].items() if off < 1e-4}
    assert missed == set(exempt)


@pytest.mark.parametrize(
    ("rev", "name", "projections", "shared"),
    [
        ("v0.18.0", "deepseek-v2-lite", DIRECT, "moe"),
        ("v0.18.0", "deepseek-v2", LOW_RANK, "moe"),
    ],
)
def test_what_turbomind_is_given_computes_what_the_model_means(
    trees: Callable[[str], Path],
    tmp_path: Path,
    rev: str,
    name: str,
    projections: list[str],
    shared: str,
) -> None:
    found = converted(trees(rev), name, tmp_path)
    judge(found)
    assert (found["projections"], found["shared"]) == (projections, shared)


def test_on_the_oldest_release_without_yarn_nothing_is_left_but_rounding(
    trees: Callable[[str], Path], tmp_path: Path
) -> None:
    found = converted(trees("v0.14.0"), "deepseek-v2-lite", tmp_path, rope_scaling=None)
    judge(found, exempt=("rope-length",))
    assert max(found["attention"], found["feed_forward"], found["logits"]) < 1e-12
    assert (found["projections"], found["shared"]) == (DIRECT, "layer")


def test_what_the_engine_would_abort_on_is_refused_before_a_weight_is_read(
    trees: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ProcessError, match="compiled for 160 experts in 8 groups, not 16 in 4"):
        converted(
            trees("v0.18.0"), "deepseek-v2", tmp_path, n_routed_experts=16, n_group=4, topk_group=2
        )
