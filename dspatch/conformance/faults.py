"""Planted faults: what each one is, where it can be planted, and which check must catch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dspatch.conformance.checks.seen import Run

LAYER = "model.layers.1"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault.

    A `hook` fault changes the running engine, and its name is known to the engine's worker; a
    `load` fault spoils the stream of weights as `plant` says (`drop`, `swap` or `scale` names).
    A `start` fault stands in what an engine loads or is set to; its name is known to the worker, and it takes a start.
    A `conversion` fault spoils what an engine converted (see `oracle_worker/spoiled.py`).
    `run` is the run that shows it, `at` the places, by layer and operation, at one of which a
    diagnosis must find it; empty of a run that asks one thing only. `hook` is the worker's name for
    it, where that is another. `needs` are the config's features without which the fault would
    change nothing.
    """

    name: str
    kind: Literal["hook", "load", "start", "conversion"]
    caught_by: str
    at: tuple[str, ...]
    run: Run = "alone"
    hook: str = ""
    needs: tuple[str, ...] = ()
    plant: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Whether a model with this config can have the fault."""
        by_hand = "passkey" in config and "passkey" not in self.needs
        return not by_hand and all(FEATURES[need](config) for need in self.needs)

    @property
    def plants(self) -> str:
        """What the engine's worker is told to plant."""
        return self.hook or self.name

    @property
    def tensors(self) -> set[str]:
        """The checkpoint names that a fault of loading touches."""
        return {name for names in self.plant.values() for name in names}


FEATURES: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "yarn": lambda config: bool(config["rope_scaling"]),
    "plain-rope": lambda config: not config["rope_scaling"],
    "query-compression": lambda config: config["q_lora_rank"] is not None,
    "router-bias": lambda config: config["topk_method"] == "noaux_tc",
    "groups": lambda config: config["n_group"] > config["topk_group"],
    "routed-scaling": lambda config: config["routed_scaling_factor"] != 1.0,
    "indexer": lambda config: "index_topk" in config,
    "passkey": lambda config: "passkey" in config,
    "fp8-blocks": lambda config: config.get("stored") == "fp8-blocks",
    "zero-points": lambda config: config.get("stored") == "awq",
    "four-bits": lambda config: config.get("stored") in ("awq", "gptq"),
    "quantised": lambda config: bool(config.get("stored")),
    "unquantised": lambda config: not config.get("stored"),
    "quiet": lambda config: "embedding_gain" in config,
    "float32-checkpoint": lambda config: config.get("torch_dtype") == "float32",
    "normed-weights": lambda config: bool(config["norm_topk_prob"]),
    "raw-weights": lambda config: not config["norm_topk_prob"],
    "softmax-router": lambda config: config["scoring_func"] == "softmax",
}


def _hook(name: str, caught_by: str, at: str, *needs: str) -> Fault:
    return Fault(name=name, kind="hook", caught_by=caught_by, at=tuple(at.split()), needs=needs)


def _asked(name: str, caught_by: str, run: Run, *needs: str, hook: str = "") -> Fault:
    """A fault that a run which asks one thing only shows."""
    return Fault(
        name=name, kind="hook", caught_by=caught_by, at=("",), run=run, hook=hook, needs=needs
    )


def _layer(hook: str, *needs: str) -> Fault:
    return _asked(f"{hook}-by-layer", "layers.local", "local", *needs, hook=hook)


def _cut(hook: str, *needs: str) -> Fault:
    return _asked(f"{hook}-by-depth", "layers.ladder", "ladder", *needs, hook=hook)


def _replayed(hook: str, *needs: str) -> Fault:
    return _asked(f"{hook}-by-routes", "routes.replayed", "replayed", *needs, hook=hook)


def _router(name: str, *needs: str) -> Fault:
    return _asked(name, "kernels.route", "routed", *needs)


def _stored(name: str, *needs: str) -> Fault:
    return _asked(name, "weights.quantised", "dequantised", *needs)


def _product(hook: str, *needs: str) -> Fault:
    return _asked(f"{hook}-in-products", "kernels.quantised", "multiplied", *needs, hook=hook)


def _started(name: str, caught_by: str, *needs: str, run: Run = "alone") -> Fault:
    return Fault(name=name, kind="start", caught_by=caught_by, at=("",), run=run, needs=needs)


def _load(name: str, caught_by: str, at: str, *needs: str, **plant: list[str]) -> Fault:
    return Fault(name=name, kind="load", caught_by=caught_by, at=(at,), needs=needs, plant=plant)


def _mlp(prefix: str) -> list[str]:
    return [f"{LAYER}.mlp.{prefix}.{part}_proj.weight" for part in ("gate", "up", "down")]


def _expert(number: int, part: str) -> str:
    return f"{LAYER}.mlp.experts.{number}.{part}_proj.weight"


# Where a lost cache shows first: the indexer, if there is one, has its keys there too.
LOST = "0.attention 0.indexer"

FAULTS: tuple[Fault, ...] = (
    _hook("unloaded-norm", "golden.fp32", "1.q_a_norm 1.kv_a_norm"),
    _hook("missing-shared-expert", "golden.fp32", "2.shared_expert"),
    _hook("wrong-softmax-scale", "golden.fp32", "0.attention", "yarn"),
    _hook("wrong-rope-layout", "layers.inside", "0.rope"),
    _hook("router-bias-ignored", "golden.routes", "1.router_choice", "router-bias"),
    _hook("group-limit-ignored", "golden.routes", "1.router_choice", "groups"),
    _hook("router-wrong-in-decoding", "golden.routes", "1.router_choice"),
    replace(_hook("router-wrong-in-a-batch", "golden.routes", "1.router_choice"), run="together"),
    replace(
        _hook("router-wrong-read-again", "golden.routes", "1.router_choice"),
        run="again",
        hook="router-wrong-in-decoding",
    ),
    _hook("q_a-kv_a-swapped", "golden.fp32", "1.q_a", "query-compression"),
    _hook("experts-swapped", "golden.fp32", "1.router_choice"),
    _hook("routed-scaling-one", "greedy.forced", "1.experts", "routed-scaling"),
    _hook("indexer-weights-ignored", "indexer.choices", "0.indexer", "indexer"),
    _hook("indexer-rope-interleaved", "indexer.choices", "0.indexer", "indexer"),
    _hook("choices-one-short", "indexer.choices", "0.indexer", "indexer"),
    _hook("choices-not-causal", "indexer.choices", "0.indexer", "indexer"),
    _hook("indexer-cache-stale", "indexer.choices", "0.indexer", "indexer"),
    _hook("cache-lost-before-decode", "decode.paged", LOST),
    _hook("cache-lost-between-chunks", "prefill.chunked", LOST),
    replace(_hook("cached-prefix-lost", "prefix.hit", LOST), run="again"),
    replace(_hook("requests-exchanged", "batch.mixed", "final_norm"), run="together"),
    _layer("unloaded-norm"),
    _layer("missing-shared-expert"),
    _layer("wrong-softmax-scale", "yarn"),
    _layer("wrong-rope-layout"),
    _layer("routed-scaling-one", "routed-scaling"),
    _cut("unloaded-norm"),
    _cut("missing-shared-expert"),
    _cut("wrong-rope-layout"),
    _replayed("unloaded-norm"),
    _replayed("experts-swapped"),
    _replayed("routed-scaling-one", "routed-scaling"),
    _router("masked-with-zero", "groups", "router-bias"),
    _router("group-by-max", "groups", "router-bias"),
    _router("mixes-with-bias", "router-bias"),
    _router("bias-rounded", "router-bias"),
    _router("not-renormalised", "normed-weights"),
    _router("masked-before-softmax", "groups", "softmax-router"),
    _router("renormalised", "raw-weights"),
    _hook("wrong-epsilon", "golden.fp32", "0.input_norm", "quiet"),
    _hook("logits-flattened", "logits.kl", "head"),
    _hook("logits-capped", "logits.topk", "head"),
    _asked("runner-up-picked", "greedy.forced", "alone"),
    _asked("angles-stretched", "rope.table", "turned"),
    _asked("cache-lost-late", "decode.late", "late"),
    _asked("foreign-row-after-scoring", "decode.scored", "scored"),
    _asked("temperature-ignored", "sampling.distribution", "sampled", "unquantised"),
    _asked("top-p-ignored", "sampling.distribution", "sampled", "unquantised"),
    _asked("seed-ignored", "sampling.seed", "sampled", "unquantised"),
    _asked("positions-clipped", "longctx.passkey", "passkey", "passkey"),
    _asked("yarn-halved", "longctx.passkey", "passkey", "passkey", "yarn"),
    _asked("table-tail-wrong", "longctx.passkey", "passkey", "passkey"),
    _asked("decode-without-cache", "inv.selfkl", "selfkl", hook="cache-lost-before-decode"),
    _stored("block-scales-transposed", "fp8-blocks"),
    _stored("block-scales-inverted", "fp8-blocks"),
    _stored("last-block-dropped", "fp8-blocks"),
    _stored("zero-points-one-off", "zero-points"),
    _stored("packed-in-plain-order", "four-bits"),
    _stored("group-scales-one-on", "four-bits"),
    _stored("absorbed-unscaled", "quantised"),
    _product("last-block-dropped", "fp8-blocks"),
    _product("block-scales-transposed", "fp8-blocks"),
    _product("zero-points-one-off", "zero-points"),
    _product("group-scales-one-on", "four-bits"),
    _load(
        "norm-not-loaded",
        "weights.coverage",
        "1.kv_a_norm",
        drop=[f"{LAYER}.self_attn.kv_a_layernorm.weight"],
    ),
    _load(
        "shared-expert-not-loaded",
        "weights.coverage",
        "1.shared_expert",
        "unquantised",
        drop=_mlp("shared_experts"),
    ),
    _load(
        "experts-loaded-swapped",
        "weights.values",
        "1.experts",
        "unquantised",
        swap=[_expert(number, "down") for number in (3, 4)],
    ),
    _load("block-scaled", "weights.values", "1.experts", "unquantised", scale=[_expert(5, "gate")]),
    _started("norm-at-one", "golden.fp32"),
    _started("shared-expert-lost", "golden.fp32"),
    _started("softmax-factor-lost", "golden.fp32", "yarn"),
    _started("rope-in-halves", "golden.fp32"),
    _started("experts-exchanged", "golden.fp32"),
    _started("routed-scaling-lost", "greedy.forced", "routed-scaling"),
    _started("router-bias-lost", "golden.fp32", "router-bias"),
    _started("prompts-not-cut", "prefill.chunked"),
    _started("prefixes-not-cached", "prefix.hit", run="again"),
)


def fitting(kind: str, config: Mapping[str, Any]) -> list[Fault]:
    """The faults of a kind that a model with this config can have."""
    return [fault for fault in FAULTS if fault.kind == kind and fault.fits(config)]
