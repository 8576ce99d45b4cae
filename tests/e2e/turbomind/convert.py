"""Run a tree's conversion of a small checkpoint, and hold what TurboMind is given against two oracles.

    python convert.py TREE CONFIG.json

TREE holds `lmdeploy/`; CONFIG.json is a small DeepSeek-V2. Prints JSON: the largest relative difference of
each kind of operation layer by layer (second model in float64), of all logits (that and transformers), and
which tensors of the checkpoint nobody read. `faults` says by how much the logits are off when what was
converted is spoiled in some way.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import reference
import stub
import torch
from oracle_worker import twin
from oracle_worker.golden import load
from oracle_worker.weights import tensors
from safetensors.numpy import save_file

IDS = [(7 * n * n + 3 * n) % 500 for n in range(48)]


def main() -> None:
    """Convert, spoil, measure."""
    tree, config = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = tensors(config, 0)
        save_file(given, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        stub.install(tree)
        model, unread = converted(folder)
        transformers = by_transformers(folder)
    weights = {name: torch.from_numpy(value).double() for name, value in given.items()}
    got = reference.logits(model, IDS)
    found = {
        **measured(model, config, weights),
        "logits": relative(got, twin.run(config, weights, IDS).logits),
        "transformers": relative(got, transformers),
        "faults": {name: relative(spoiled(model, name), got) for name in FAULTS},
    }
    print(json.dumps({**found, "unread": unread, **facts(model)}))


def spoiled(model: Any, fault: str) -> torch.Tensor:
    """Logits of what was converted, with a fault in its last layer."""
    model = copy.deepcopy(model)
    FAULTS[fault](model)
    return reference.logits(model, IDS)


def converted(folder: Path) -> tuple[Any, list[str]]:
    """The engine's modules as the tree's own code fills them, and the tensors that nobody read."""
    from lmdeploy.turbomind import checkpoint, weight_format
    from lmdeploy.turbomind.builders import _base
    from lmdeploy.turbomind.models import base, deepseek2  # noqa: F401
    from transformers import AutoConfig

    kind = stub.DataType.TYPE_FP32
    getattr(weight_format, "_TRIVIAL_DTYPES", {})[kind] = torch.float64
    source = checkpoint.create_checkpoint(str(folder))
    source._data = {name: value.double() for name, value in source._data.items()}
    model = base.INPUT_MODELS.models["deepseek2"](
        AutoConfig.from_pretrained(folder), resolver=resolver(weight_format, kind)
    )
    one, root = _base.ParallelGroup(1, [0]), stub.Root()
    groups = ("attn_tp", "mlp_tp", "ep", "model_tp", "dense_tp")
    taken = model.bind_runtime.__code__.co_varnames
    model.bind_runtime(
        ctx=context(_base, kind),
        root_handles=[root],
        **{name: one for name in groups if name in taken},
    )
    model.model(checkpoint.Prefix(source))
    return root.model, sorted(source.keys())


def resolver(weight_format: Any, kind: Any) -> Any:
    """Weights as they are, under either generation's way to say so."""
    try:
        trivial = [weight_format.TrivialFormat(weight_dtype=kind)]
        return weight_format.WeightFormatResolver(formats=trivial)
    except TypeError:
        trivial = [weight_format.TrivialFormat()]
        return weight_format.WeightFormatResolver(data_type=kind, formats=trivial)


def context(builders: Any, kind: Any) -> Any:
    """One GPU that is none."""
    try:
        return builders.Context([stub.Device()], stub.GEMM, kind, stub.DataType.TYPE_INVALID)
    except TypeError:
        return builders.Context([stub.Device()], data_type=kind)


def measured(
    model: Any, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """The largest relative difference of attention and of feed-forward, layer by layer."""
    later = twin.future(len(IDS))
    hidden = weights["model.embed_tokens.weight"][IDS]
    worst = {"attention": 0.0, "feed_forward": 0.0}

    def compared(kind: str, got: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        worst[kind] = max(worst[kind], relative(got, right))
        return right

    for number, layer in enumerate(reference.layers(model)):
        own = twin.below(weights, f"model.layers.{number}.")
        given = twin._norm(hidden, own["input_layernorm.weight"], config)
        right = twin.attention(config, twin.below(own, "self_attn."), given, later)
        hidden = hidden + compared(
            "attention", reference.attention(layer.children["attention"], given), right
        )
        given = twin._norm(hidden, own["post_attention_layernorm.weight"], config)
        right = twin.feed_forward(config, twin.below(own, "mlp."), given)
        hidden = hidden + compared("feed_forward", reference.feed_forward(layer, given), right)
    return worst


def by_transformers(folder: Path) -> torch.Tensor:
    """transformers' logits in float64, with eager attention and experts."""
    model = load(folder, "eager", torch.float64)
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([IDS]), use_cache=False).logits[0]
    return found


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    """Largest difference over the largest number."""
    return ((got - right).abs().max() / right.abs().max()).item()


def facts(model: Any) -> dict[str, Any]:
    """Which projections the first layer has, and where the shared expert is."""
    last = reference.layers(model)[-1]
    return {
        "projections": sorted(last.children["attention"].children),
        "shared": "moe" if "shared" in last.children["moe_ffn"].children else "layer",
    }


def _attention(model: Any) -> Any:
    return reference.layers(model)[-1].children["attention"]


def _moe(model: Any) -> Any:
    return reference.layers(model)[-1].children["moe_ffn"]


def _scale(model: Any) -> None:
    _attention(model).config.softmax_scale *= 1.01


def _rope_length(model: Any) -> None:
    _attention(model).config.rope.max_position_embeddings *= 40


def _latent_norm(model: Any) -> None:
    _attention(model).children["kv_a_layernorm"].tensors["weight"].fill_(1.0)


def _pad(model: Any) -> None:
    """The output projection's rows of zeros at the other end of each head."""
    wo, cfg = _attention(model).children["wo"], _attention(model).config
    heads = wo.tensors["weight"].unflatten(0, (cfg.head_num, -1))
    wo.tensors["weight"] = heads.roll(-cfg.qk_rope_dim, 1).flatten(0, 1)


def _heads(model: Any) -> None:
    children = _attention(model).children
    query = children["q_proj" if "q_proj" in children else "q_b_proj"]
    width = _attention(model).config.head_dim
    query.tensors["weight"] = query.tensors["weight"].roll(width, 1)


def _halves(model: Any) -> None:
    """Keys' rotated part in halves, as other models have it, where the engine turns pairs."""
    weight = _attention(model).children["kv_a_proj"].tensors["weight"]
    turned = weight[:, -64:].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    weight[:, -64:] = turned.clone()


def _experts(model: Any) -> None:
    children = _moe(model).children["experts"].children
    children["0"], children["1"] = children["1"], children["0"]


def _gate_is_up(model: Any) -> None:
    for expert in _moe(model).children["experts"].children.values():
        both = expert.children["w1w3"].tensors
        both["weight"] = both["weight"].flip(1)


def _unscaled(model: Any) -> None:
    _moe(model).config.routed_scale *= 1.01


def _normalised(model: Any) -> None:
    _moe(model).config.norm_topk_prob = True


def _fewer(model: Any) -> None:
    _moe(model).config.experts_per_token -= 1


FAULTS: dict[str, Callable[[Any], None]] = {
    "softmax-scale": _scale,
    "rope-length": _rope_length,
    "latent-norm-lost": _latent_norm,
    "output-padded-behind": _pad,
    "heads-shifted": _heads,
    "rope-in-halves": _halves,
    "experts-swapped": _experts,
    "gate-is-up": _gate_is_up,
    "routes-scaled": _unscaled,
    "routes-normalised": _normalised,
    "one-expert-less": _fewer,
}
main()
