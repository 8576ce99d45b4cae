"""`pytorch-mla-decode` in LMDeploy 0.18.0's own attention, without a GPU: when it is taken, and what it computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspatch.console import Console
from dspatch.stages import apply
from dspatch.stages.request import Request
from tests.e2e.test_mla_decode_kernels import run

pytestmark = pytest.mark.e2e

CHECKS = ["chosen", "numbers", "buffers", "fallback", "interface"]
# What each planted fault is, in which file, and the check that must see it.
PLANTED = {
    "not asked first": ("__init__.py", "if dspatch_mla.asked_for(spec, sliding_window):", "if False:", "chosen"),
    "taken unasked": ("dspatch_mla.py", "return value == 'dspatch' and latents", "return latents", "chosen"),
    "sparse attention taken": ("dspatch_mla.py", " and spec.mla_index_topk is None", "", "chosen"),
    "a window forgotten": ("dspatch_mla.py", " and all(window == -1 for window in sliding_window)", "", "chosen"),
    "the scale forgotten": ("dspatch_mla.py", "lengths, self.scale)", "lengths, 1.0)", "numbers"),
    "lengths of queries": ("dspatch_mla.py", "attn_metadata.kv_seqlens.to", "attn_metadata.q_seqlens.to", "numbers"),
    "pages of another size": ("dspatch_mla.py", "k_cache.size(1), batch)", "2 * k_cache.size(1), batch)", "numbers"),
    "too few requests": ("dspatch_mla.py", "most = 1 << max(batch - 1, 0).bit_length()", "most = 2", "buffers"),
    "several tokens taken": ("dspatch_mla.py", "query.size(0) == batch and ", "", "fallback"),
    "quantised caches taken": ("dspatch_mla.py", "not served or attn_metadata.quant_policy != QuantPolicy.NONE",
        "not served", "fallback"),
    "what is given on dropped": ("dspatch_mla.py", "attn_metadata, max_q_seqlen, **kwargs)\n        decoder",
        "attn_metadata, max_q_seqlen)\n        decoder", "fallback"),
    "no metadata": ("dspatch_mla.py", "return TritonAttentionMetaBuilder()", "return None", "interface"),
}  # fmt: skip


def tree() -> Path:
    """LMDeploy 0.18.0 with the series."""
    asked = Request(engine="lmdeploy", rev="v0.18.0", target="cuda")
    return apply.run(asked, Console(as_json=True)).job.folder / "tree"


def test_it_decodes_in_the_engine_s_own_attention_and_every_fault_is_seen(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text(json.dumps(PLANTED))
    said = run("in_lmdeploy.py", tmp_path, str(tree()))
    # LMDeploy's log goes to the same place.
    told = json.loads(said.splitlines()[-1])
    assert told == {"held": CHECKS, "seen": list(PLANTED)}
