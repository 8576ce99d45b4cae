"""Each patch that CPU MLA of 0.27.1 is made of: what the stock wheel does, and the patched one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspatch import process
from dspatch.conformance import small
from dspatch.engines import Options, vllm
from dspatch.engines.environment import for_wheel
from tests.e2e.test_series_faults import wheels

pytestmark = pytest.mark.e2e

BACKEND = """
import sys, torch
from vllm.platforms import current_platform
from vllm.v1.attention.selector import AttentionSelectorConfig
try:
    wanted = AttentionSelectorConfig(576, torch.float32, "auto", 128, use_mla=True)
    print("seen", current_platform.get_attn_backend_cls(None, wanted).rsplit(".")[-1])
    wanted = AttentionSelectorConfig(576, torch.float32, "auto", 128, use_mla=True, use_sparse=True)
    current_platform.get_attn_backend_cls(None, wanted)
except NotImplementedError as error:
    print("seen", error)
"""
WEIGHT = """
import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
layer = torch.nn.Module()
layer.weight = torch.nn.Parameter(torch.ones(32, 64), requires_grad=False)
layer.keep_unpacked_weight = True
UnquantizedLinearMethod().process_weights_after_loading(layer)
print("seen", layer.weight.numel())
"""
LAYOUT = """
import torch
from vllm.model_executor.layers.attention import mla_attention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
layer = torch.nn.Module()
layer.kv_lora_rank, layer.num_heads, layer.qk_nope_head_dim, layer.v_head_dim = 8, 2, 4, 6
layer.kv_b_proj = torch.nn.Module()
layer.kv_b_proj.weight = torch.nn.Parameter(torch.randn(20, 8), requires_grad=False)
layer.kv_b_proj.quant_method = UnquantizedLinearMethod()
layer.quant_config, layer.layer_name, layer.dcp_q_replicate = None, "layer", False
layer.is_aiter_triton_fp4_bmm_enabled = layer.is_aiter_triton_fp8_bmm_enabled = False
mla_attention.set_default_quant_scales = lambda *args, **kwargs: None
mla_attention.MLAAttention.process_weights_after_loading(layer, torch.float32)
by_head = layer.kv_b_proj.weight.view(2, 10, 8)
same = bool((layer.W_UK_T == by_head[:, :4]).all() and (layer.W_UV.mT == by_head[:, 4:]).all())
print("seen", layer.W_UK_T.is_contiguous(), layer.W_UV.is_contiguous(), same)
"""
CHUNKED = """
import sys
from vllm.engine.arg_utils import EngineArgs
config = EngineArgs(
    model=sys.argv[1], dtype="float32", skip_tokenizer_init=True, enforce_eager=True,
    enable_chunked_prefill=True, max_num_batched_tokens=64, max_num_seqs=4,
).create_engine_config()
scheduler = config.scheduler_config
print("seen", scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens == 64)
"""
REFUSED = ["MLA is not supported on CPU."]
SERVED = ["CPUMLABackend", "Sparse Attention is not supported on CPU."]
PATCHES = {
    "cpu-mla": (BACKEND, REFUSED, SERVED),
    "cpu-mla-weights": (WEIGHT, ["0"], [str(32 * 64)]),
    "cpu-mla-weight-layout": (LAYOUT, ["False False True"], ["True True True"]),
    "cpu-mla-chunked-prefill": (CHUNKED, ["False False"], ["True True"]),
}


@pytest.mark.parametrize("patch", PATCHES)
def test_stock_fails_where_the_patched_wheel_works(patch: str, tmp_path: Path) -> None:
    script, *wanted = PATCHES[patch]
    config = small.case("deepseek-v2-lite").config
    (tmp_path / "config.json").write_text(json.dumps(dict(config)))
    for wheel, lines in zip(wheels("v0.27.1"), wanted, strict=True):
        assert seen(wheel, script, tmp_path) == lines


def seen(wheel: Path, script: str, folder: Path) -> list[str]:
    """What the script's `seen` lines say in the environment of a wheel."""
    python = for_wheel("vllm", wheel).python
    done = process.run([python, "-c", script, folder], env=vllm.environment(Options()))
    lines = done.stdout.splitlines()
    return [line.removeprefix("seen ") for line in lines if line.startswith("seen ")]
