"""Run functions of a release that is not installed, in the oracle's environment, where a finding blames them.

    python release_read.py FOLDER:FINDING,FINDING...

Each FOLDER holds files of a release under their own paths. What they import of their engine and of
packages that are not here is replaced by stand-ins; the functions themselves are the release's. Prints
one JSON object, the outcome in words by folder and finding.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Optional
from unittest.mock import patch

import torch
from routers import compared, reference_v2, reference_v3

V2 = {"n_routed_experts": 160, "n_group": 8, "topk_group": 3, "num_experts_per_tok": 6}
V3 = {"n_routed_experts": 256, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8}
TOKENS = 200


class Anything:
    """Stands for a class that the functions name and do not rest on; it keeps what it is made with."""

    def __init__(self, *_: object, **given: object) -> None:
        self.__dict__.update(given)

    def __class_getitem__(cls, _: object) -> type:
        return cls


class StandIn(ModuleType):
    """A module in which every name is there, as a class of its own."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {})


class Registry:
    """As much of mmengine's Registry as the modules use."""

    def __init__(self, name: str, **_: object) -> None:
        self.module_dict: dict[str, type] = {}

    def register_module(self, name: str | list[str] | None = None) -> Callable[[type], type]:
        """Keep a class under its names."""

        def keep(given: type) -> type:
            names = [name] if isinstance(name, str) else name or [given.__name__]
            self.module_dict.update(dict.fromkeys(names, given))
            return given

        return keep

    def get(self, name: str) -> type | None:
        """The class of a name."""
        return self.module_dict.get(name)


class Finder:
    """Imports LMDeploy's modules from a release's folder, and stand-ins where they are not there."""

    folder = Path()

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """The spec of a module of LMDeploy, or of a package that it needs and that is not here."""
        if name.partition(".")[0] not in ("lmdeploy", "mmengine", "pydantic", "_turbomind"):
            return None
        file = self.folder / (name.replace(".", "/") + ".py")
        if file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: Any) -> ModuleType:
        """A stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing, but for what is used of these modules."""
        if module.__name__ == "mmengine":
            module.Registry = Registry
        elif module.__name__ == "pydantic.dataclasses":
            module.dataclass = __import__("dataclasses").dataclass
        elif module.__name__ == "lmdeploy.utils":
            module.get_logger = lambda name: __import__("logging").getLogger(name)
        elif module.__name__ == "lmdeploy.archs":
            module.get_model_arch = lambda path, **_: ("DeepseekV32ForCausalLM", None)


RELEASE = Finder()


def main() -> None:
    """Run the proofs that are asked for, release by release."""
    sys.meta_path.insert(0, RELEASE)
    seen = {}
    for words in sys.argv[1:]:
        folder, _, findings = words.rpartition(":")
        for name in [name for name in sys.modules if name.startswith("lmdeploy")]:
            del sys.modules[name]
        RELEASE.folder = Path(folder)
        seen[folder] = {finding: outcome(finding) for finding in findings.split(",")}
    print(json.dumps(seen))


def outcome(finding: str) -> str:
    """What the proof of a finding gives, or how it ended."""
    torch.manual_seed(0)
    try:
        return PROOFS[finding]()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def gate(sizes: dict[str, int], dtype: torch.dtype = torch.float32, **more: Any) -> torch.nn.Module:
    """The release's gate of a model's real sizes with weights of a router's usual spread."""
    default = importlib.import_module("lmdeploy.pytorch.backends.default.moe")
    models = importlib.import_module("lmdeploy.pytorch.models.deepseek_v2")
    with patch.dict(os.environ, more.pop("variables", {})):
        models.SoftmaxTopK = lambda top_k, **_: default.DefaultSoftmaxTopKImpl(top_k).forward
        route = importlib.import_module("lmdeploy.pytorch.nn.moe.route")
        routers = importlib.import_module("lmdeploy.pytorch.backends.default.moe_router")
        route.NoauxTCRouter = lambda *a, **k: routers.DefaultRouterNoauxTCImpl(*a, **k).forward
        models.RouterGemm = lambda **k: routers.DefaultRouterGemmImpl(**k).forward
        config = SimpleNamespace(**sizes, hidden_size=128, aux_loss_alpha=0, seq_aux=True, **more)
        made = models.MoEGate(config, dtype=dtype)
    with torch.no_grad():
        made.weight.copy_(torch.randn(made.weight.shape) / math.sqrt(128))
        if hasattr(made, "e_score_correction_bias"):
            made.e_score_correction_bias.zero_()
    return made.requires_grad_(False)


def gate_v2(**more: Any) -> torch.nn.Module:
    """V2's gate."""
    stated = {"scoring_func": "softmax", "topk_method": "group_limited_greedy"}
    return gate(V2, **stated, norm_topk_prob=False, routed_scaling_factor=16.0, **more)


def gate_v3(**more: Any) -> torch.nn.Module:
    """V3's gate."""
    stated = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    return gate(V3, **stated, norm_topk_prob=True, routed_scaling_factor=2.5, **more)


def weighted(made: torch.nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the gate gives, renormalised where the release leaves that to the layer of the experts."""
    weights, chosen = made(hidden)
    text = (RELEASE.folder / "lmdeploy/pytorch/models/deepseek_v2.py").read_text()
    left = re.search(r"top_k=self.top_k,\s+renormalize=self.renormalize", text)
    if made.renormalize and left:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, chosen


def router_v2() -> str:
    """V2's router beside the reference."""
    made, hidden = gate_v2(), torch.randn(TOKENS, 128)
    return compared(made(hidden), reference_v2(hidden @ made.weight.T, V2, 16.0))


def router_v3() -> str:
    """V3's router beside the reference, with biases above two."""
    made, hidden = gate_v3(), torch.randn(TOKENS, 128)
    made.e_score_correction_bias.copy_(torch.rand(256) + 2)
    logits, bias = hidden @ made.weight.T, made.e_score_correction_bias
    return compared(weighted(made, hidden), reference_v3(logits, bias, V3, 2.5))


def masked_with_zero() -> str:
    """V3's router beside the reference, with biases below minus one."""
    made, hidden = gate_v3(), torch.randn(TOKENS, 128)
    made.e_score_correction_bias.copy_(torch.rand(256) - 3)
    logits, bias = hidden @ made.weight.T, made.e_score_correction_bias
    negative = compared(weighted(made, hidden), reference_v3(logits, bias, V3, 2.5))
    made.e_score_correction_bias.copy_(torch.rand(256) + 2)
    positive = compared(weighted(made, hidden), reference_v3(logits, bias, V3, 2.5))
    return f"biases below 0: {negative}; above 2: {positive}"


def logits_dtype() -> str:
    """The router of a bfloat16 model beside one in float32 throughout."""
    made, hidden = gate_v3(dtype=torch.bfloat16), torch.randn(TOKENS, 128).bfloat16()
    logits = hidden.float() @ made.weight.float().T
    bias = made.e_score_correction_bias.float()
    return compared(weighted(made, hidden), reference_v3(logits, bias, V3, 2.5))


def fake_eplb() -> str:
    """V3's router with the variable of a load test, beside the reference."""
    made = gate_v3(variables={"LMDEPLOY_FAKE_EPLB": "True"})
    hidden = torch.randn(TOKENS, 128)
    wanted = reference_v3(hidden @ made.weight.T, made.e_score_correction_bias, V3, 2.5)
    plain = gate_v3()
    plain.weight.copy_(made.weight)
    return (
        f"{compared(made(hidden), wanted)}; without the variable {compared(plain(hidden), wanted)}"
    )


def info(**changed: Any) -> dict[str, Any]:
    """What TurboMind is told of V2-Lite's config with some of it changed."""
    source = importlib.import_module("lmdeploy.turbomind.deploy.source_model.deepseek2")
    model = source.DeepSeek2Model.__new__(source.DeepSeek2Model)
    scaling = {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
    }  # fmt: skip
    model.model_config = {
        "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "num_attention_heads": 16, "vocab_size": 512,
        "intermediate_size": 10944, "num_key_value_heads": 16, "hidden_size": 2048, "topk_group": 1,
        "rope_theta": 10000, "max_position_embeddings": 163840, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "kv_lora_rank": 512, "q_lora_rank": None, "v_head_dim": 128,
        "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1408, "n_group": 1,
        "num_experts_per_tok": 6, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
        "topk_method": "greedy", "first_k_dense_replace": 1, "rope_scaling": scaling, **changed,
    }  # fmt: skip
    return model.model_info()


def yarn() -> str:
    """The factors of YaRN, where rope_scaling says type and where it says rope_type."""
    told = []
    for key in ("type", "rope_type"):
        scaling = {
            key: "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707,
            "mscale_all_dim": 0.707,
        }  # fmt: skip
        made = info(rope_scaling=scaling)
        factor, scale = made["rope_param"].attention_factor, made["softmax_scale"] * 192**0.5
        told.append(f"{key}: cos and sin times {factor:.3f}, softmax times {scale:.3f}")
    return "; ".join(told)


def stretched() -> str:
    """The length that the engine is given for V2-Lite, whose YaRN stretches 4096 tokens to 163840."""
    module = importlib.import_module("lmdeploy.turbomind.models.utils")
    told = []
    for kind in ("yarn", "default"):
        scaling = {"type": kind, "factor": 40, "original_max_position_embeddings": 4096}
        config = SimpleNamespace(
            rope_scaling=scaling, rope_theta=10000, max_position_embeddings=163840
        )
        given = SimpleNamespace()
        module.copy_rope_config(given, *module.parse_rope_param(config, 64))
        told.append(given.max_position_embeddings)
    return f"length given for YaRN: {told[0]}, without YaRN: {told[1]}"


def taken(path: str, name: str, known: dict[str, Any]) -> Callable[..., Any]:
    """One function of a release's file, without its decorators, to which only these names are known."""
    tree = ast.parse((RELEASE.folder / path).read_text())
    found = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    found.decorator_list = []
    exec(compile(ast.Module([found], []), path, "exec"), known)
    function: Callable[..., Any] = known[name]
    return function


def places() -> str:
    """Places that the engine keeps for requests that were prefilled, for each a row of the model agent."""
    role = SimpleNamespace(Prefill="prefill")
    update = taken(
        "lmdeploy/pytorch/engine/inputs_maker.py",
        "update_running_seqs",
        {"EngineRole": role, "MessageStatus": None},
    )
    told = []
    for tokens in ((8, 8), (0, 8)):
        maker = SimpleNamespace(
            config=SimpleNamespace(role="hybrid"),
            long_context_chunker=SimpleNamespace(enabled=lambda: False),
            running_seqs=[],
        )
        asked = [SimpleNamespace(sampling_param=SimpleNamespace(max_new_tokens=n)) for n in tokens]
        update(maker, asked, SimpleNamespace(logits_indices=None))
        told.append(len(maker.running_seqs))
    return f"two that generate: {told[0]}, one that scores and one that generates: {told[1]}"


def dense() -> str:
    """The experts of each layer, of a config with three dense layers."""
    return f"experts by layer: {info(first_k_dense_replace=3)['expert_num']}"


def exported(dtype: torch.dtype, **variables: str) -> list[str]:
    """What the conversion of V2's attention writes of a layer."""
    module = importlib.import_module("lmdeploy.turbomind.deploy.module")
    with patch.dict(os.environ, variables):
        sizes = info(q_lora_rank=1536)
    saved: list[str] = []
    config = SimpleNamespace(**{**sizes, "qk_rope_dim": 64, "hidden_units": 2048, "head_num": 16})
    model = SimpleNamespace(
        attn_tp_size=1, model_config=config, save_split=lambda _, name, **k: saved.append(name)
    )
    shapes = ((1536, 2048), (16 * 192, 1536), None, (576, 2048), (16 * 256, 512), (2048, 2048))
    weights = [None if shape is None else torch.zeros(shape, dtype=dtype) for shape in shapes]
    module.MLA(model)._export(0, weights, "weight", lambda tensor: tensor)
    return sorted(name.split(".")[3] for name in saved)


def fold_off() -> str:
    """What is written with folding, and without it."""
    told = ", ".join(exported(torch.bfloat16, LMDEPLOY_MLA_FOLD="0"))
    return f"written without folding: {told}"


def quantised() -> str:
    """What is written of weights that arrive as bytes."""
    return ", ".join(exported(torch.uint8))


def hadamard() -> str:
    """The check of the environment for V3.2, where neither package is installed."""
    names = ("deepseek_v32", "deepseek_v2")
    for name in names:
        module = importlib.import_module(f"lmdeploy.pytorch.configurations.{name}")
        if hasattr(module, "_check_env_v32"):
            module._check_env_v32()
            return "nothing is missed"
    return "there is no check"


def template() -> str:
    """The prompt of a chat with a model whose tokenizer has no template."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    module = importlib.import_module("lmdeploy.model")
    with tempfile.TemporaryDirectory() as folder:
        inner = Tokenizer(models.WordLevel({"hello": 0, "<unk>": 1}, unk_token="<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
        chosen = module.get_chat_template(folder)
        said = [{"role": "user", "content": "hello"}]
        return f"{type(chosen).__name__} makes {chosen.messages2prompt(said)!r} of it"


def grouped(bias: torch.Tensor) -> str:
    """vLLM's grouped_topk of a release beside the reference, for V3 with such biases."""
    path = "vllm/model_executor/layers/fused_moe/fused_moe.py"
    topk = taken(path, "grouped_topk", {"torch": torch, "Optional": Optional})
    logits = torch.randn(TOKENS, 256)
    got = topk(
        torch.zeros(TOKENS, 1), logits, 8, True, 8, 4, "sigmoid", e_score_correction_bias=bias
    )
    return compared((got[0], got[1].long()), reference_v3(logits, bias, V3, 1.0))


PROOFS = {
    "lmdeploy-answer-from-scored-prompt": places,
    "lmdeploy-env-fake-eplb": fake_eplb,
    "lmdeploy-router-logits-in-bf16": logits_dtype,
    "lmdeploy-router-logits-rounded-again": logits_dtype,
    "lmdeploy-router-masks-with-zero": masked_with_zero,
    "lmdeploy-turbomind-fold-off": fold_off,
    "lmdeploy-turbomind-one-dense-layer": dense,
    "lmdeploy-turbomind-v2-quantized": quantised,
    "lmdeploy-turbomind-yarn-generic": yarn,
    "lmdeploy-turbomind-yarn-length": stretched,
    "lmdeploy-v2-double-softmax": router_v2,
    "lmdeploy-v2-masks-before-softmax": router_v2,
    "lmdeploy-v3-scale-missing": router_v3,
    "lmdeploy-v32-needs-hadamard": hadamard,
    "lmdeploy-v32-no-encoder": template,
    "vllm-router-masks-with-zero": lambda: grouped(torch.rand(256) - 3),
    "vllm-v3-group-by-max": lambda: grouped(torch.rand(256) + 2),
    "vllm-v3-mixes-with-bias": lambda: grouped(torch.full((256,), 2.0)),
}

if __name__ == "__main__":
    main()
