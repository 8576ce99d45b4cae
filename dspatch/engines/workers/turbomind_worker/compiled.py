"""TurboMind's compiled part, as much of it as the builders of v0.14.0 and later ask for: structures and modules.

Configurations take only the fields that the C++ has, and modules only its children and parameters (from
`attention_weight.h`, `moe_weight.h`, `ffn_weight.h`, `decoder_layer_weight.h` and `model_weight.h`, v0.14.0
to v0.16.0; `shared` from the strings of v0.18.0's binary), so a wrong name fails here as it does there.
"""

from __future__ import annotations

import copy
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

FIELDS = {
    "RopeConfig": "type base dim factor max_position_embeddings yarn_attention_factor yarn_beta_fast"
    " yarn_beta_slow llama3_low_freq_factor llama3_high_freq_factor"
    " llama3_original_max_position_embeddings mrope_section mrope_interleaved",
    "AttentionConfig": "hidden_dim head_dim head_num kv_head_num kv_lora_rank q_lora_rank qk_rope_dim"
    " v_head_dim tp_size tp_rank data_type window_size causal output_gate rope qk_nope_dim"
    " softmax_scale use_logn_attn",
    "MoeConfig": "expert_num experts_per_token act_type fuse_silu norm_topk_prob topk_method"
    " scoring_func topk_group n_group router_n_groups routed_scale ep_size ep_rank data_type",
    "FfnConfig": "hidden_dim inter_size act_type fuse_silu is_expert tp_size tp_rank data_type",
    "DecoderLayerConfig": "",
    "ModuleListConfig": "",
    "NormConfig": "dim norm_eps zero_centered data_type",
    "LayerNormConfig": "dim norm_eps data_type",
    "LinearConfig": "input_dim output_dim data_type format has_bias",
    "ModelWeightConfig": "hidden_units tp_size tp_rank data_type",
}
CHILDREN = {
    "AttentionConfig": "w_qkv wo q_proj q_a_proj q_b_proj kv_a_proj q_norm k_norm q_a_layernorm"
    " kv_a_layernorm",
    "MoeConfig": "gate shared_gate experts shared",
    "FfnConfig": "w1 w2 w3 w1w3",
    "DecoderLayerConfig": "attention attention_norm ffn_norm feed_forward moe_ffn linear_attn",
    "ModelWeightConfig": "layers norm output",
}
PARAMETERS = {
    "NormConfig": "weight",
    "LinearConfig": "weight bias scales zeros",
    "MoeConfig": "score_correction_bias",
    "ModelWeightConfig": "tok_embeddings",
}
KINDS = (
    "INVALID BOOL UINT2 UINT4 UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16"
    " FP8_E4M3 FP8_E5M2 FP4_E2M1 GENERIC_FLOAT"
)


def _names(kind: str, names: Any) -> Any:
    return Enum(kind, names)


DataType = _names("DataType", {f"TYPE_{kind}": kind for kind in KINDS.split()})
ActivationType = _names("ActivationType", "kSilu kSiluGptOss")
# What a parameter takes; the types that are not here stand for float64.
BITS = {"UINT4": 4, "FP8_E4M3": 8, "UINT8": 8}
# What the engine keeps in the type that it is given.
EXACT = ("scales", "zeros", "score_correction_bias")


class Config:
    """A configuration of the C++: its own fields and no other."""

    if TYPE_CHECKING:
        kind: str

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, kind: str) -> None:
        object.__setattr__(self, "kind", kind)
        for field in FIELDS[kind].split():
            object.__setattr__(self, field, 0)
        if kind == "AttentionConfig":
            object.__setattr__(self, "rope", Config("RopeConfig"))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in FIELDS[self.kind].split():
            raise AttributeError(f"{self.kind} has no field {name}")
        object.__setattr__(self, name, value)

    def clone(self) -> Config:
        return copy.deepcopy(self)


class Slot:
    """A parameter that was allocated, in a type that no conversion casts to."""

    type = None

    def __init__(self, module: Module, name: str, shape: list[int], kind: Any) -> None:
        self._module, self._name, self._shape, self._kind = module, name, shape, kind

    @property
    def byte_size(self) -> int:
        """Bytes; a weight that the engine has in 16 bits is given to it unrounded, in float64."""
        return int(torch.Size(self._shape).numel() * BITS.get(self._kind.value, 64)) // 8

    def copy_from(self, tensor: torch.Tensor) -> None:
        """Keep the tensor under its name, and the type that the engine has it in."""
        self._module.tensors[self._name] = tensor.clone()
        self._module.types[self._name] = str(self._kind.value)


class Scales(Slot):
    """Scales, zero points and the router's bias, which keep their own type."""

    @property
    def byte_size(self) -> int:
        bits = int(self._kind.value.removeprefix("BF").removeprefix("FP"))
        return int(torch.Size(self._shape).numel()) * bits // 8


class Module:
    """One module of the engine: its configuration, tensors and children, each under a known name."""

    def __init__(self, config: Config) -> None:
        self.config, self.kind = config.clone(), config.kind
        self.tensors: dict[str, torch.Tensor] = {}
        self.types: dict[str, str] = {}
        self.children: dict[str, Module] = {}

    def param(self, name: str) -> Any:
        assert name in PARAMETERS[self.kind].split(), f"{self.kind} has no parameter {name}"
        slot = Scales if name in EXACT else Slot
        return SimpleNamespace(alloc=lambda shape, kind: slot(self, name, shape, kind))

    def add_child_raw(self, name: str, child: Module) -> None:
        known = CHILDREN.get(self.kind, "").split()
        assert name in known or self.kind == "ModuleListConfig", f"{self.kind} has no child {name}"
        self.children[name] = child

    def set_plan(self, plan: Any) -> None:
        pass


class Device:
    """A GPU's context, entered around every copy."""

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...


class Root:
    """The engine's sentinel, which is given the whole model."""

    model: Module

    def add_child_raw(self, name: str, child: Module) -> None:
        assert name == "text_model"
        self.model = child


PLAN = SimpleNamespace(
    family="reference",
    shape_constraints=((1, 1), (1, 1)),
    bridge=(1, 1, DataType.TYPE_INVALID, DataType.TYPE_INVALID),
    gate_up=lambda activation, width: 0,
)


class Gemm:
    """The choice of kernels: any type of numbers, and one plan for all weights."""

    def get_weight_plan(self, query: Any) -> Any:
        """A plan that asks for no padding and no other blocks than the checkpoint's."""
        return PLAN

    def data_types(self, form: Any) -> list[Any]:
        """The types of activations that a weight of this form is multiplied with."""
        return [DataType.TYPE_BF16, DataType.TYPE_FP16]


class Communicator:
    """One GPU that is none, and the root of the model on it."""

    def __init__(self) -> None:
        self.own = Root()

    def context(self, gpu: int) -> Device:
        """The GPU's context."""
        return Device()

    def gemm(self, gpu: int) -> Gemm:
        """The GPU's choice of kernels."""
        return Gemm()

    def root(self, gpu: int) -> Root:
        """Where the model is hung."""
        return self.own

    def __getattr__(self, name: str) -> Any:
        if not name.endswith("_rank"):
            raise AttributeError(name)
        return lambda gpu: 0


def compiled() -> ModuleType:
    """What stands for `_turbomind`."""
    module: Any = ModuleType("_turbomind")
    for kind in FIELDS:
        setattr(module, kind, lambda kind=kind: Config(kind))
    module.DataType, module.Gemm, module.TensorMap = DataType, Gemm, dict
    module.ActivationType = ActivationType
    module.create_module = Module
    module.WeightQuery = SimpleNamespace
    for name in ("DataFormat", "ResolveLinearWeightFormat"):
        setattr(module, name, lambda *args, **kwargs: SimpleNamespace())
    found: ModuleType = module
    return found
