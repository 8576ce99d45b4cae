"""What each operation should give for the engine's own input to it, so that no other's error is in its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from . import metrics, twin
from .twin import below

Tensors = Mapping[str, Tensor]
Pair = tuple[Tensor, Tensor]  # what is right, and what the engine has
CLOSE = 1e-4  # between two scores that float32 may take for each other
# Of the spacing of numbers at one: the least that is taken for plain torch's error, before it is squared.
ROUNDED = 1 / 8


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text in an engine: token `ids` (tokens,), and what the engine had at some `positions` (rows,).

    `places` are results (rows, ...) by operation, `context` what attention read of every position, `choices` the
    keys that it was given. `weights` are as the engine holds them. All is computed in `dtype`.
    """

    config: Mapping[str, Any]
    weights: Tensors
    ids: Tensor
    positions: Tensor
    places: Tensors
    context: Tensors
    choices: Tensors
    dtype: torch.dtype = torch.float64

    def layer(self, number: int) -> Layer:
        """One layer of it."""
        weights = below(self.weights, f"model.layers.{number}.")
        # A router's bias is no factor of a product; models keep it in float32.
        own = {
            n: v.double() if n.endswith("_bias") else v.to(self.dtype) for n, v in weights.items()
        }
        return Layer(text=self, number=number, weights=own)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Results by operation: the engine's where it showed them, else what is right for those before."""

    text: Text
    number: int
    weights: Tensors
    made: dict[str, Tensor] = field(default_factory=dict)

    def shown(self, name: str) -> Tensor:
        """The engine's own result. Raises `LookupError` where it showed none."""
        return self.text.places[f"{self.number}.{name}"].to(self.text.dtype)

    def __getitem__(self, name: str) -> Tensor:
        """The engine's result, else the right one; `LookupError` where neither can be told."""
        if f"{self.number}.{name}" in self.text.places:
            return self.shown(name)
        if name not in self.made:
            self.made[name] = OPERATIONS[name](self)
        return self.made[name]

    def times(self, name: str, weight: str) -> Tensor:
        """A result times one of the layer's weights."""
        return self[name] @ self.weights[weight].T

    def normed(self, value: Tensor, weight: str) -> Tensor:
        """A norm of the layer."""
        return twin.norm(value, self.weights[weight], self.text.config)

    @property
    def sparse(self) -> bool:
        """Whether it has a router."""
        return "mlp.gate.weight" in self.weights

    @property
    def middle(self) -> Tensor:
        """The stream behind attention."""
        return self["input"] + self["o_proj"]

    @property
    def end(self) -> Tensor:
        """The stream behind the layer."""
        added = self["experts"] + self["shared_expert"] if self.sparse else self["mlp"]
        return self.middle + added


def pairs(text: Text) -> dict[str, Pair]:
    """Each operation with its input shown: what is right for that, beside the engine's result.

    Also `N.layer`, what a layer adds up to, and `N.router`: see `routed`.
    """
    embedding = text.weights["model.embed_tokens.weight"][text.ids[text.positions]]
    out = {"embed": (embedding, text.places["embed"])} if "embed" in text.places else {}
    layers: int = text.config["num_hidden_layers"]
    for number in range(layers):
        layer = text.layer(number)
        known = {name: _tried(right, layer) for name, right in OPERATIONS.items()}
        known["layer"] = _tried(lambda one: one.end, layer)
        shown = {name: text.places.get(f"{number}.{name}") for name in OPERATIONS}
        shown["layer"] = text.places.get(f"{number + 1}.input")
        for name, value in shown.items():
            own = known[name]
            if value is not None and own is not None and own.shape == value.shape:
                out[f"{number}.{name}"] = own, value
        if (pair := routed(text, number)) is not None:
            out[f"{number}.router"] = pair
    last = text.places.get(f"{layers}.input")
    if last is not None and "final_norm" in text.places:
        weight = text.weights["model.norm.weight"].to(text.dtype)
        own = twin.norm(last.to(text.dtype), weight, text.config)
        out["final_norm"] = own, text.places["final_norm"]
    return out


def rounding(right: Tensor, coarse: Tensor, dtype: torch.dtype) -> Tensor:
    """Plain torch's own error (rows,) in a dtype: that of the row, or of a typical one, if it is larger."""
    least = (torch.finfo(dtype).eps * ROUNDED) ** 2
    own = metrics.by_row(coarse, right)
    # What plain torch has no number for excuses nobody.
    own = own.where(own.isfinite(), 0.0)
    return own.maximum(own.median() if len(own) else own).clamp_min(least)


def headed(text: Text) -> Tensor | None:
    """The logits (rows, vocab) that are right for what the last norm gave; nothing where nobody saw that."""
    if "final_norm" not in text.places:
        return None
    head = text.weights.get("lm_head.weight", text.weights["model.embed_tokens.weight"])
    return text.places["final_norm"].to(text.dtype) @ head.to(text.dtype).T


def routed(text: Text, number: int) -> Pair | None:
    """What a router should make of the engine's own logits, beside what it made; nothing where it did not show both.

    The weights (rows, experts) of the right experts before the routed scaling; of experts of which float32 may take
    one for another those that the engine took.
    """
    layer = text.layer(number)
    try:
        own = layer.shown("router")
        chosen = _chosen(layer)
    except LookupError:
        return None
    raw = layer.shown("gate").double()
    right, margin = twin.routed(text.config, raw, twin.biased(below(layer.weights, "mlp."), raw))
    wrong = ((right != 0) != (own != 0)).any(-1) & (margin > CLOSE)
    return right.where(wrong[:, None], chosen) / float(text.config["routed_scaling_factor"]), own


def _chosen(layer: Layer) -> Tensor:
    """The right weights (rows, experts) of the experts that the engine chose, by its own logits."""
    config, raw = layer.text.config, layer.shown("gate").double()
    experts = layer.shown("router").topk(config["num_experts_per_tok"])[1]
    return twin.weighed(config, twin.scored(config, raw), experts)


def undivided(text: Text, by: float) -> Text:
    """The text as it is or, where its first layer adds up to that, with the stream and what experts add times `by`.

    vLLM divides both in float16 by the routed scaling, so that they do not overflow. A norm means the whole stream.
    """
    after = text.places.get("1.input")
    right = None if by == 1.0 or after is None else _tried(lambda layer: layer.end, text.layer(0))
    if right is None or after is None:
        return text
    whole = replace(text, places=_times(text.places, by))
    ends = [
        (metrics.relative(one.layer(0).end, one.places["1.input"]), one) for one in (text, whole)
    ]
    return min(ends, key=lambda each: each[0])[1]


def _times(places: Tensors, by: float) -> dict[str, Tensor]:
    out = dict(places)
    for name, value in places.items():
        number, _, kind = name.partition(".")
        if kind == "input" and number != "0":
            out[name] = value * by
        if kind == "experts":
            # It is the shared expert's part of both that is divided, too, and was taken out whole.
            shared = places[f"{number}.shared_expert"]
            out[name] = (value + shared) * by - shared
    return out


def _tried(right: Callable[[Layer], Tensor], layer: Layer) -> Tensor | None:
    try:
        return right(layer)
    except LookupError:
        return None


def _query(layer: Layer) -> Tensor:
    if "self_attn.q_proj.weight" in layer.weights:
        return layer.times("input_norm", "self_attn.q_proj.weight")
    return layer.times("q_a_norm", "self_attn.q_b_proj.weight")


def _rope(layer: Layer) -> Tensor:
    """The rotated query of all heads and the rotated key, (rows, (heads + 1) * dim)."""
    config = layer.text.config
    query = layer["query"].unflatten(-1, (config["num_attention_heads"], -1))
    key = layer["kv_a"][:, None, config["kv_lora_rank"] :]
    parts = torch.cat((query[..., config["qk_nope_head_dim"] :], key), 1)
    return twin.rotate(config, parts, layer.text.positions).flatten(1)


def _attention(layer: Layer) -> Tensor:
    """What the query at hand makes of the latents and keys that the engine had of all positions."""
    text, config = layer.text, layer.text.config
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    end = int(text.positions.max()) + 1
    latent, key = (
        text.context[f"{layer.number}.{name}"][:end].to(text.dtype) for name in ("kv_a_norm", "key")
    )
    if bool(latent.isnan().any() | key.isnan().any()):
        raise LookupError("what attention read was not seen of every position")
    expanded = (latent @ layer.weights["self_attn.kv_b_proj.weight"].T).unflatten(-1, (heads, -1))
    query = layer["query"].unflatten(-1, (heads, -1))[..., :nope]
    turned = layer["rope"].unflatten(-1, (heads + 1, -1))[:, :heads]
    # Scores are float32's at least, as in any kernel.
    query, turned, key, known = (twin.wide(v) for v in (query, turned, key, expanded[..., :nope]))
    scores = torch.einsum("qhd,khd->hqk", query, known) + torch.einsum("qhd,kd->hqk", turned, key)
    scores = (scores * twin.softmax_scale(config)).masked_fill(_unseen(layer, end), float("-inf"))
    share = scores.softmax(-1).to(text.dtype)
    return torch.einsum("hqk,khd->qhd", share, expanded[..., nope:]).flatten(1)


def _unseen(layer: Layer, end: int) -> Tensor:
    """Which keys a query does not see, (rows, end): later ones, and those that its indexer did not choose."""
    text = layer.text
    later = torch.arange(end) > text.positions[:, None]
    if "index_topk" not in text.config:
        return later
    chosen = text.choices[str(layer.number)][text.positions].long()
    # A key that there is none of is -1, and the last one of a row that is cut off.
    taken = torch.zeros(len(chosen), end + 1, dtype=torch.bool)
    taken = taken.scatter(1, chosen.where(chosen >= 0, end), True)
    return later | ~taken[:, :end]


def _feed(layer: Layer, prefix: str) -> Tensor:
    return twin.mlp(below(layer.weights, prefix), layer["post_norm"])


def _dense(layer: Layer) -> Tensor:
    if layer.sparse:
        raise LookupError("what a layer of experts gives is told by its parts")
    return _feed(layer, "mlp.")


def _experts(layer: Layer) -> Tensor:
    """What the experts that the engine chose add together, by the weights that it gave them."""
    own, right = layer.shown("router"), _chosen(layer)
    # Some engines put the routed scaling on the weights, others on what the experts give.
    scales = (1.0, float(layer.text.config["routed_scaling_factor"]))
    weights = min((own * one for one in scales), key=lambda one: metrics.relative(one, right))
    each = (
        _feed(layer, f"mlp.experts.{expert}.") * w[:, None] for expert, w in enumerate(weights.T)
    )
    return sum(each, torch.zeros(()))


OPERATIONS: dict[str, Callable[[Layer], Tensor]] = {
    "input_norm": lambda layer: layer.normed(layer.shown("input"), "input_layernorm.weight"),
    "q_a": lambda layer: layer.times("input_norm", "self_attn.q_a_proj.weight"),
    "q_a_norm": lambda layer: layer.normed(layer["q_a"], "self_attn.q_a_layernorm.weight"),
    "query": _query,
    "kv_a": lambda layer: layer.times("input_norm", "self_attn.kv_a_proj_with_mqa.weight"),
    "kv_a_norm": lambda layer: layer.normed(
        layer["kv_a"][:, : layer.text.config["kv_lora_rank"]], "self_attn.kv_a_layernorm.weight"
    ),
    "rope": _rope,
    "attention": _attention,
    "o_proj": lambda layer: layer.times("attention", "self_attn.o_proj.weight"),
    "post_norm": lambda layer: layer.normed(layer.middle, "post_attention_layernorm.weight"),
    "mlp": _dense,
    "gate": lambda layer: layer.times("post_norm", "mlp.gate.weight"),
    "shared_expert": lambda layer: _feed(layer, "mlp.shared_experts."),
    "experts": _experts,
}
