"""Run in the environment of a vLLM wheel: what its own functions do where a finding says that they are wrong.

    python vllm_installed.py SLOT_MAPPING FINDING...

Prints one JSON object, the outcome in words by finding. SLOT_MAPPING is the CPU's replacement functions
as the tree has them that the wheel was made of.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch


def main() -> None:
    """Run the proofs that are asked for."""
    seen = {}
    for finding in sys.argv[2:]:
        with contextlib.redirect_stdout(io.StringIO()):
            seen[finding] = outcome(finding)
    print(json.dumps(seen))


def outcome(finding: str) -> str:
    """What the proof of a finding gives, or how it ended."""
    try:
        return str(PROOFS[finding]())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def backend(*, sparse: bool) -> str:
    """The attention that the CPU platform chooses for a model with latent attention."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import AttentionSelectorConfig

    torch.cpu._is_amx_tile_supported = lambda: False
    wanted = AttentionSelectorConfig(
        576, torch.float32, "auto", 128, use_mla=True, use_sparse=sparse
    )
    return str(current_platform.get_attn_backend_cls(None, wanted)).rpartition(".")[2]


def amx() -> str:
    """The attention that float32 and bfloat16 get where the processor has AMX tiles."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.selector import AttentionSelectorConfig

    torch.cpu._is_amx_tile_supported = lambda: True
    names = []
    for dtype in (torch.float32, torch.bfloat16):
        wanted = AttentionSelectorConfig(576, dtype, "auto", 16, use_mla=True)
        names.append(str(current_platform.get_attn_backend_cls(None, wanted)).rpartition(".")[2])
    return f"float32 gets {names[0]}, bfloat16 {names[1]}"


def head_sizes() -> str:
    """The sizes that CPU MLA says it decodes."""
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

    sizes = (576, 96 + 32)
    return ", ".join(f"{size}: {CPUMLABackend.supports_head_size(size)}" for size in sizes)


def rope() -> str:
    """Plain RoPE on the slices that latent attention passes, beside its own PyTorch form."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    torch.manual_seed(0)
    with set_current_vllm_config(VllmConfig()):
        layer = RotaryEmbedding(64, 64, 512, 10000, False, torch.float32)
    positions = torch.arange(7) + 3
    query, key = torch.randn(7, 4, 192), torch.randn(7, 1, 64)
    right = layer.forward_native(positions, query[..., 128:].clone(), key.clone())
    got = layer.forward_cpu(positions, query[..., 128:], key)
    off = max((a - b).abs().max().item() for a, b in zip(got, right, strict=True))
    return "as in PyTorch" if off < 1e-5 else f"off by more than {'1' if off > 1 else '0'}"


def packed() -> str:
    """What packing leaves of a weight that latent attention reads later."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.ones(32, 64), requires_grad=False)
    layer.keep_unpacked_weight = True
    UnquantizedLinearMethod().process_weights_after_loading(layer)
    return f"{layer.weight.numel()} of 2048 numbers are left"


def slots() -> str:
    """The slots of two tokens, by the kernel's own arguments in their order."""
    import vllm._C  # noqa: F401

    spec = importlib.util.spec_from_file_location("replaced", sys.argv[1])
    replaced = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(replaced)
    slot = torch.full((4,), -1, dtype=torch.int64)
    starts, places = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 17])
    table = torch.tensor([[3, 5]], dtype=torch.int32)
    kernel = (2, 4, starts, places, table, 2, slot, 16, 1, 0, 1, -1, 1024)
    replaced._compute_slot_mapping_kernel_impl(*kernel)
    return f"slots {slot[:2].tolist()}"


def fp8_slices() -> str:
    """V3's dense layers cut for 32 ranks, held against blocks of 128."""
    from vllm import distributed
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    distributed.get_tensor_model_parallel_world_size = lambda: 1  # no groups of ranks are made
    layer = SimpleNamespace(tp_size=32, prefix="model.layers.0.mlp.down_proj")
    told = []
    for hidden in (18432, 2048):
        try:
            fp8_utils.validate_fp8_block_shape(
                layer, hidden, 7168, hidden // 32, [7168], [128, 128]
            )
        except ValueError as error:
            told.append(str(error))
    layer.tp_size = 16
    fp8_utils.validate_fp8_block_shape(layer, 18432, 7168, 18432 // 16, [7168], [128, 128])
    return f"32 ranks: {' '.join(told)} 16 ranks: taken"


def tool_parser() -> str:
    """The parser of V3's tool calls, made for a tokenizer without its tokens."""
    from vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser

    tokenizer = SimpleNamespace(get_vocab=lambda: {"<|im_start|>": 0, "hello": 1})
    return type(DeepSeekV3ToolParser(tokenizer)).__name__


WORDS = (
    "<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
ARGUMENTS = '{"city": "Bonn", "days": 3}'


def tokenizer() -> SimpleNamespace:
    """As much of a tokenizer as the parsers ask: the numbers of V3's own marks."""
    return SimpleNamespace(get_vocab=lambda: {word: n for n, word in enumerate(WORDS)})


def ids(text: str) -> list[int]:
    """The marks of a text as tokens, everything else as one."""
    parts = re.split("(" + "|".join(map(re.escape, WORDS)) + ")", text)
    return [WORDS.index(part) if part in WORDS else 99 for part in parts if part]


def think_opener() -> str:
    """What the reasoning is where the model's <think> comes together with the next token."""
    from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

    text = "<think>Hmm"
    parser = DeepSeekR1ReasoningParser(tokenizer())
    told = parser.extract_reasoning_streaming("", text, text, [], ids(text), ids(text))
    return f"reasoning is {told.reasoning!r}"


def call_in_lines() -> str:
    """What is made of a call whose arguments stand on several lines."""
    from vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser

    parser = DeepSeekV3ToolParser(tokenizer())
    counts = []
    for arguments in (ARGUMENTS, ARGUMENTS.replace(", ", ",\n")):
        text = CALL.replace("{}", arguments)
        counts.append(len(parser.extract_tool_calls(text, SimpleNamespace()).tool_calls))
    return f"{counts[0]} call from one line, {counts[1]} from two"


def streamed_call() -> str:
    """The arguments that come of a call, streamed in three deltas that end where tokens do."""
    from vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser

    whole = CALL.replace("{}", ARGUMENTS)
    ends = [whole.index("weather"), whole.index("Bonn"), len(whole)]
    parser, done, told = DeepSeekV3ToolParser(tokenizer()), "", ""
    for end in ends:
        text = whole[:end]
        made = parser.extract_tool_calls_streaming(
            done, text, text[len(done) :], ids(done), ids(text), ids(text[len(done) :]),
            SimpleNamespace(),
        )  # fmt: skip
        for call in (made.tool_calls or []) if made else []:
            told += (call.function.arguments or "") if call.function else ""
        done = text
    return f"{len(told)} of {len(ARGUMENTS)} characters come"


def routing(**stated: object) -> dict[str, Any]:
    """What the expert layer of a saved V3 config is asked for."""
    from transformers import DeepseekV3Config
    from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.models import deepseek_v2

    seen: dict[str, Any] = {}

    class Gate(torch.nn.Module):
        out_dtype = None
        weight = torch.zeros(1)

        def set_out_dtype(self, dtype: torch.dtype) -> None:
            seen["gate"] = dtype

    def experts(**arguments: object) -> torch.nn.Module:
        seen.update(arguments)
        layer = torch.nn.Identity()
        layer.quant_method = SimpleNamespace(is_monolithic=False)  # type: ignore[assignment]
        return layer

    group = SimpleNamespace(device_group=SimpleNamespace(size=lambda: 1), rank_in_group=0)
    deepseek_v2.get_ep_group = lambda: group
    deepseek_v2.get_tensor_model_parallel_world_size = lambda: 1
    deepseek_v2.get_tensor_model_parallel_rank = lambda: 0
    deepseek_v2.GateLinear = lambda *_, **__: Gate()
    deepseek_v2.DeepseekV2MLP = lambda **_: torch.nn.Identity()
    for name in ("FusedMoEFactory", "FusedMoE", "SharedFusedMoE"):
        if hasattr(deepseek_v2, name):
            setattr(deepseek_v2, name, experts)
    config = DeepseekV3Config(
        hidden_size=32, moe_intermediate_size=16, n_routed_experts=8, n_shared_experts=1, n_group=2,
        topk_group=1, **stated,
    )  # fmt: skip
    with set_current_vllm_config(VllmConfig()):
        deepseek_v2.DeepseekV2MoE(config, ParallelConfig())
    return seen


def topk_method() -> str:
    """Whether the expert layer has a place for the correction bias of a saved V3 config."""
    bias = routing()["e_score_correction_bias"]
    named = routing(topk_method="noaux_tc")["e_score_correction_bias"]
    assert named is not None
    return "no place for the bias" if bias is None else "a place for the bias"


def gate_dtype() -> str:
    """What a float32 router hands its logits out in."""
    return f"logits in {routing().get('gate', torch.float32)}"


def missing_weight() -> str:
    """Whether the loader says that a linear layer's weight did not come."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    layer = torch.nn.Linear(2, 2, bias=False)
    layer.quant_method = UnquantizedLinearMethod()
    loader = DefaultModelLoader(LoadConfig())
    try:
        loader.track_weights_loading(torch.nn.Sequential(layer), set())
    except ValueError as error:
        return str(error)
    return "no word of a linear layer without its weight"


@contextlib.contextmanager
def load_test() -> Iterator[None]:
    """The variable of a load test, set inside this block."""
    os.environ["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"] = "uniform_random"
    try:
        yield
    finally:
        del os.environ["VLLM_MOE_ROUTING_SIMULATION_STRATEGY"]


def best_four() -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and logits of which the first four experts are the best by far."""
    logits = torch.zeros(64, 256)
    logits[:, :4] = 100.0
    return torch.zeros(64, 8), logits


def simulated() -> str:
    """What the router that all targets share takes while the variable of a load test is set."""
    from vllm.model_executor.layers.fused_moe.router.router_factory import create_fused_moe_router

    with load_test():
        router = create_fused_moe_router(top_k=4, global_num_experts=256, renormalize=True)
        _, chosen = router.select_experts(*best_four())[:2]
    right = (chosen < 4).all().item()
    return f"{type(router).__name__} takes {'the' if right else 'other experts than the'} best four"


def simulated_cpu() -> str:
    """The same of the experts on CPU, which chose for themselves once."""
    try:
        from vllm.model_executor.layers.fused_moe.cpu_fused_moe import select_experts
    except ImportError:
        return simulated()
    with load_test():
        _, chosen = select_experts(*best_four(), top_k=4, use_grouped_topk=False, renormalize=True)
    right = (chosen < 4).all().item()
    return f"the CPU's own choice takes {'the' if right else 'other experts than the'} best four"


def package_v32() -> str:
    """The opt-in package of V3.2 on a platform that says it is an XPU."""
    from vllm.platforms import current_platform

    told = {"is_cuda": False, "is_rocm": False, "is_xpu": True, "is_cpu": False}
    kept = {name: getattr(current_platform, name) for name in told}
    for name, value in told.items():
        setattr(current_platform, name, lambda value=value: value)
    try:
        from vllm.models import deepseek_v32
    finally:
        for name, method in kept.items():
            setattr(current_platform, name, method)
    return f"imported: {deepseek_v32.DeepseekV32ForCausalLM.__name__}"


def nobind() -> str:
    """What becomes of the cores of a rank where none are to be bound."""
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    manager = OMPProcessManager.__new__(OMPProcessManager)
    manager.local_world_size, manager.local_dp_rank = 1, None
    manager.simulate_multi_node, manager.reserve_cpu_num = False, 0
    manager._parse_omp_threads_bind_env()
    return f"{len(manager.cpu_lists)} lists of cores"


def body_list() -> str:
    """What the request of a chat says to a list."""
    from pydantic import ValidationError
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    try:
        return str(ChatCompletionRequest.model_validate([]))
    except ValidationError:
        return "refused as no object"


def flag(*words: str) -> str:
    """What `vllm serve` says of words on its command line."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    except ModuleNotFoundError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser

    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.suppress(SystemExit):
        make_arg_parser(FlexibleArgumentParser()).parse_args(list(words))
        return "taken"
    return told.getvalue().strip().splitlines()[-1].partition("error: ")[2]


PROOFS = {
    "vllm-body-not-an-object": body_list,
    "vllm-cpu-amx-unasked": amx,
    "vllm-cpu-env-routing-simulation": simulated_cpu,
    "vllm-cpu-kv-b-proj-emptied": packed,
    "vllm-cpu-mla-one-shape": head_sizes,
    "vllm-cpu-mla-refused": lambda: backend(sparse=False),
    "vllm-cpu-nobind-crash": nobind,
    "vllm-cpu-rope-strides": rope,
    "vllm-cpu-slot-mapping": slots,
    "vllm-cpu-sparse-mla-refused": lambda: backend(sparse=True),
    "vllm-env-routing-simulation": simulated,
    "vllm-flag-calculate-kv-scales": lambda: flag("--calculate-kv-scales"),
    "vllm-flag-enable-reasoning": lambda: flag("--enable-reasoning"),
    "vllm-flag-guided-decoding-backend": lambda: flag("--guided-decoding-backend", "xgrammar"),
    "vllm-flag-num-scheduler-steps": lambda: flag("--num-scheduler-steps", "8"),
    "vllm-flag-rope-scaling": lambda: flag("--rope-scaling", "{}"),
    "vllm-flag-speculative-model": lambda: flag("--speculative-model", "m"),
    "vllm-flag-swap-space": lambda: flag("--swap-space", "4"),
    "vllm-flag-task": lambda: flag("--task", "generate"),
    "vllm-fp8-tensor-parallel-slices": fp8_slices,
    "vllm-gate-rounds-to-bf16": gate_dtype,
    "vllm-missing-weights-unsaid": missing_weight,
    "vllm-think-opener-streamed": think_opener,
    "vllm-tool-arguments-with-lines": call_in_lines,
    "vllm-tool-parser-needs-tokens": tool_parser,
    "vllm-tool-stream-drops-arguments": streamed_call,
    "vllm-v3-topk-method": topk_method,
    "vllm-v32-package-no-xpu": package_v32,
    "vllm-v32-package-sm100-only": package_v32,
}

if __name__ == "__main__":
    main()
