"""The shipped patches on the real sources of their pins: lint, goldens by git am, planted drift."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from dspatch import checkout, pins, treefiles
from dspatch.apply import PatchedTree, apply_series
from dspatch.carry.lint import goldens
from dspatch.carry.uses import drift, guard, usesfile
from dspatch.carry.uses.names import Names
from dspatch.console import Console
from dspatch.git import Change
from dspatch.series import layered
from dspatch.stages import lint
from dspatch.stages.request import served
from dspatch.traits import Traits
from dspatch.treefiles import Files

pytestmark = pytest.mark.e2e
REVS = [pin.rev for pin in pins.pinned("vllm")]


@cache
def patched(rev: str) -> PatchedTree:
    pristine = checkout.checkout(pins.load("vllm", rev))
    return apply_series(layered("vllm"), pristine, target="cpu", variants=served(()))


def test_the_shipped_patches_have_no_fault_on_any_pin() -> None:
    found = lint.run("vllm", (), Console(as_json=True))
    assert found.faults == ()
    assert found.tried == tuple(REVS)


@pytest.mark.parametrize("rev", REVS)
def test_git_am_takes_the_goldens_of_a_pin_and_gives_the_tree(rev: str, tmp_path: Path) -> None:
    tree = patched(rev)
    base = tree.checkout.commit
    git = [
        "git",
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@y",
        "-c",
        "gc.auto=0",
        "-C",
        str(tmp_path),
    ]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    alternates = tmp_path / ".git/objects/info/alternates"
    alternates.write_text(f"{tree.checkout.repo.path / 'objects'}\n")
    subprocess.run([*git, "checkout", "-q", base], check=True)
    series = layered("vllm")
    mails = [goldens.path(series.patch(patch.name), rev) for patch in tree.patches]
    subprocess.run([*git, "am", "-q", "--keep-cr", *map(str, mails)], check=True)
    made = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], check=True, capture_output=True)
    assert made.stdout.decode().strip() == tree.tree


# On the sources of v0.27.1: where, what, by what, and what has to be said of which symbol.
BACKEND = "vllm/v1/attention/backend.py"
UTILS = "vllm/v1/attention/backends/utils.py"
OPS = "vllm/_custom_ops.py"
PREFILL = "vllm/v1/attention/backends/mla/prefill/base.py"
MLA = "vllm/model_executor/layers/attention/mla_attention.py"
# What stands behind a parameter of split_decodes_and_prefills, and behind one of rotary_embedding.
SPLIT = " = {},\n    treat_short_extends_as_decodes: bool = True,\n) -> tuple[int, int, int, int]"
ROPE = ": torch.Tensor,\n    is_neox: bool,\n    rope_dim_offset: int = 0,\n    inverse: bool = False,\n) -> None:"
PLANTED = {
    "parameters reordered": (
        UTILS, "    common_attn_metadata: CommonAttentionMetadata,\n    decode_threshold: int = 1,\n",
        "    decode_threshold: int,\n    common_attn_metadata: CommonAttentionMetadata,\n",
        "split_decodes_and_prefills", "argument 1 was `common_attn_metadata` and is `decode_threshold`",
    ),
    "default changed": (
        UTILS, "uniform: bool" + SPLIT.format(False), "uniform: bool" + SPLIT.format(True),
        "split_decodes_and_prefills", "the default of `require_uniform` was False and is True",
    ),
    "parameter renamed": (
        OPS, f"    cos_sin_cache{ROPE}", f"    cos_sin{ROPE}",
        "_custom_ops.rotary_embedding", "argument 5 was `cos_sin_cache` and is `cos_sin`",
    ),
    "function gone": (
        OPS, "def rotary_embedding(", "def rope(", "_custom_ops.rotary_embedding", "it is no longer there",
    ),
    "field gone": (
        BACKEND, "    query_start_loc_cpu: torch.Tensor\n", "    query_start: torch.Tensor\n",
        "CommonAttentionMetadata.query_start_loc_cpu", "it is no longer there",
    ),
    "new abstract method": (
        PREFILL, "    @abstractmethod\n    def run_prefill_new_tokens(",
        "    @abstractmethod\n    def warm_up(self): ...\n\n    @abstractmethod\n    def run_prefill_new_tokens(",
        "prefill.base.MLAPrefillBackend", "`warm_up` is abstract, and our `",
    ),
    "hook renamed": (
        PREFILL, "    def run_prefill_context_chunk(", "    def run_context_chunk(",
        "prefill.base.MLAPrefillBackend.run_prefill_context_chunk", "it is no longer there",
    ),
    "hook got a parameter": (
        MLA, "    def forward_mha(  # type: ignore[override]\n        self,\n",
        "    def forward_mha(\n        self,\n        window,\n",
        "MLACommonImpl.forward_mha", "callers may pass `window`, which ours does not take",
    ),
    "hook gives something else": (
        PREFILL, ") -> tuple[torch.Tensor, torch.Tensor]:", ") -> torch.Tensor:",
        "MLAPrefillBackend.run_prefill_context_chunk", "it gave tuple[Tensor, Tensor] and gives Tensor",
    ),
    "hook became a coroutine": (
        MLA, "    def forward_mha(  # type: ignore[override]", "    async def forward_mha(  # type: ignore[override]",
        "MLACommonImpl.forward_mha", "it was a method and is an async method",
    ),
    "enum member gone": (
        "vllm/v1/attention/backends/registry.py", "    CPU_ATTN =", "    CPU =",
        "AttentionBackendEnum.CPU_ATTN", "it is no longer there",
    ),
    "method turned property": (
        "vllm/platforms/interface.py", "    def is_cpu(self)", "    @property\n    def is_cpu(self)",
        "current_platform.is_cpu", "it was a method and is a property",
    ),
    "parameter of an edited function renamed": (
        "vllm/platforms/cpu.py", ' attn_selector_config: "AttentionSel', ' config: "AttentionSel',
        "get_attn_backend_cls.attn_selector_config", "it is no longer there",
    ),
    "function moved": (
        MLA, "from vllm.model_executor.utils import replace_parameter\n", "",
        "mla_attention.replace_parameter", "it is no longer there",
    ),
    "local variable renamed": (
        MLA, "        W_UK, W_UV = ", "        W_K, W_UV = ",
        "process_weights_after_loading.W_UK", "it is no longer there",
    ),
    "attribute gone": (
        MLA, "        self.v_head_dim = v_head_dim\n        self.kv_b_proj", "        self.kv_b_proj",
        "MLACommonImpl.v_head_dim", "it is no longer there",
    ),
}  # fmt: skip


def planted(tree: PatchedTree, path: str, old: str, new: str) -> Files:
    repo = tree.checkout.repo
    files = treefiles.of_tree(repo, tree.commit)
    text = (files.read(path) or b"").decode()
    assert old in text, (path, old)
    change = Change(path=path, data=text.replace(old, new).encode())
    return files.with_changes({path: change})


@pytest.mark.parametrize("name", PLANTED)
def test_a_change_planted_in_the_real_sources_is_caught(name: str) -> None:
    path, old, new, symbol, said = PLANTED[name]
    tree = patched("v0.27.1")
    with tree.checkout.repo.reading():
        names = Names(planted(tree, path, old, new).read)
        series = layered("vllm")
        facts = Traits(series.traits, names.read)
        found = [d for p in tree.patches for d in guard.drifts(series.patch(p.name), names, facts)]
    assert any(d.symbol.endswith(symbol) and said in "; ".join(d.changes) for d in found), found


def test_a_hook_that_a_later_release_calls_otherwise_is_seen() -> None:
    recorded = usesfile.read(layered("vllm").patch("mla-decode-kernels").folder)
    assert recorded is not None
    old = next(each for each in recorded.others if each.written_for == "v0.19.0")
    hook = [use for use in old.uses if use.symbol.endswith("FlashMLASparseImpl._forward_bf16_kv")]
    assert hook
    found = {}
    for rev in ("v0.20.2", "v0.32.0"):
        pristine = checkout.checkout(pins.load("vllm", rev))
        with pristine.repo.reading():
            names = Names(treefiles.of_tree(pristine.repo, pristine.tree).read)
            found[rev] = [change for one in drift.check(hook, names) for change in one.changes]
    assert found["v0.20.2"] == []
    assert found["v0.32.0"][-2:] == [
        "callers may pass `actual_num_heads`, which ours does not take",
        "it gave Tensor and gives tuple[Tensor, Tensor | None]",
    ]


HARMLESS = {
    "new optional parameter": (
        UTILS, "    treat_short_extends_as_decodes: bool = True,\n) -> tuple[int, int, int, int]",
        "    treat_short_extends_as_decodes: bool = True,\n    more: bool = False,\n) -> tuple[int, int, int, int]",
    ),
    "docstring": (UTILS, "Assuming a reordered batch", "Given a reordered batch"),
    "annotation": (OPS, "    cos_sin_cache: torch.Tensor,\n", "    cos_sin_cache: 'torch.Tensor',\n"),
    "new field with a default": (
        BACKEND, "    logits_indices_padded: torch", "    windowed: bool = False\n    logits_indices_padded: torch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_of_the_real_sources_is_not_reported(name: str) -> None:
    tree = patched("v0.27.1")
    with tree.checkout.repo.reading():
        names = Names(planted(tree, *HARMLESS[name]).read)
        series = layered("vllm")
        facts = Traits(series.traits, names.read)
        assert not [
            d for p in tree.patches for d in guard.drifts(series.patch(p.name), names, facts)
        ]
