"""Faults planted into a running engine and taken out again, so that one start serves them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from asking import UnaskableError

from . import lookups, rerouting
from .dequantised import absorbed_of, projections
from .engine import attentions_of, caches_of, tables_of
from .observe import indexer_of, positions_of, routing
from .plant import (
    attributes,
    each,
    input_changed,
    output_changed,
    overwritten,
    owners_of,
    runner_up_picked,
    unheeded,
)

Config = Mapping[str, Any]
Plant = Callable[[Any, Config], AbstractContextManager[None]]

LATE = 100  # the position at which a late fault begins


def unloaded_norm(model: Any, config: Config) -> AbstractContextManager[None]:
    """One attention norm as if it had never been loaded: all ones."""
    attention = model.model.layers[1].self_attn
    norm = getattr(attention, "q_a_layernorm", None) or attention.kv_a_layernorm
    return overwritten(norm.weight, 1.0)


def missing_shared_expert(model: Any, config: Config) -> AbstractContextManager[None]:
    """The last layer without what its shared expert adds."""
    return output_changed(model.model.layers[-1].mlp.shared_experts, lambda out: out * 0)


def wrong_softmax_scale(model: Any, config: Config) -> AbstractContextManager[None]:
    """Attention without the mscale factor that YaRN puts on the softmax."""
    # Prefill and decode kernels each hold a scale of their own; a smaller query does it to both.
    yarn = config["rope_scaling"]
    gain = (0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1.0) ** 2
    return each(input_changed(one, lambda query: query / gain) for one in attentions_of(model))


def wrong_rope_layout(model: Any, config: Config) -> AbstractContextManager[None]:
    """Half-split rotation where pairs are interleaved, and the other way round."""
    owners = [m for m in model.modules() if hasattr(m, "is_neox_style")]
    return attributes(owners, "is_neox_style", lambda value: not value)


def router_bias_ignored(model: Any, config: Config) -> AbstractContextManager[None]:
    """Experts chosen without the correction bias."""
    return each(overwritten(bias, 0.0) for bias in rerouting.biases_of(model))


def qkv_a_swapped(model: Any, config: Config) -> AbstractContextManager[None]:
    """The compressed query and the latent, taken for each other in one layer."""
    import torch

    rows = config["q_lora_rank"]
    fused = model.model.layers[1].self_attn.fused_qkv_a_proj
    return output_changed(fused, lambda out: torch.cat((out[..., -rows:], out[..., :-rows]), -1))


def experts_swapped(model: Any, config: Config) -> AbstractContextManager[None]:
    """Tokens of experts 3 and 4 sent to one another."""

    def swap(weights: Any, ids: Any) -> tuple[Any, Any]:
        return weights, ids.where(ids != 3, ids + 1).where(ids != 4, ids - 1)

    return routing(model, swap)


def routed_scaling_one(model: Any, config: Config) -> AbstractContextManager[None]:
    """The routed experts without their scaling factor."""
    return attributes(owners_of(model, "routed_scaling_factor"), "routed_scaling_factor", _one)


def _one(value: Any) -> float:
    return 1.0


def group_limit_ignored(model: Any, config: Config) -> AbstractContextManager[None]:
    """Experts chosen among all groups instead of the best ones."""
    return attributes(owners_of(model, "topk_group"), "topk_group", lambda _: config["n_group"])


def indexers_of(model: Any) -> list[Any]:
    """The indexers of all layers; `UnaskableError` when there is none."""
    found = [one for layer in model.model.layers if (one := indexer_of(layer)) is not None]
    if not found:
        raise UnaskableError("no layer of this engine has an indexer")
    return found


def indexer_weights_ignored(model: Any, config: Config) -> AbstractContextManager[None]:
    """Every indexer head with the same weight, whatever the query says."""
    import torch

    key = config["index_head_dim"]

    def level(out: Any) -> Any:
        return torch.cat((out[..., :key], torch.ones_like(out[..., key:])), -1)

    return each(output_changed(one.wk_weights_proj, level) for one in indexers_of(model))


def indexer_rope_interleaved(model: Any, config: Config) -> AbstractContextManager[None]:
    """The indexer rotates pairs, as attention does, instead of halves."""
    owners = [m for m in model.modules() if getattr(m, "is_neox_style", False)]
    return attributes(owners, "is_neox_style", lambda value: False)


def choices_changed(model: Any, change: Callable[[Any, Any], None]) -> AbstractContextManager[None]:
    """Let `change` write to the chosen keys (tokens, most) of the tokens at positions (tokens,)."""

    def hook(indexer: Any, args: Any, output: Any) -> None:
        positions = args[2]
        change(indexer.topk_indices_buffer[: len(positions)], positions)

    return each(one.register_forward_hook(hook) for one in indexers_of(model))


def choices_one_short(model: Any, config: Config) -> AbstractContextManager[None]:
    """One key fewer than the model chooses."""

    def shorten(chosen: Any, positions: Any) -> None:
        chosen[:, -1] = -1

    return choices_changed(model, shorten)


def choices_not_causal(model: Any, config: Config) -> AbstractContextManager[None]:
    """Each token also attends to the one behind it, where that is in the cache already."""

    def look_ahead(chosen: Any, positions: Any) -> None:
        last = positions.max()
        chosen[:, 0] = (positions + 1).clamp_max(last).to(chosen.dtype)

    return choices_changed(model, look_ahead)


def indexer_cache_stale(model: Any, config: Config) -> AbstractContextManager[None]:
    """The indexer's keys of earlier passes lost, the latents still there."""

    def hook(indexer: Any, args: Any) -> None:
        empty_cache(indexer.k_cache)

    return each(one.register_forward_pre_hook(hook) for one in indexers_of(model))


@contextmanager
def cache_lost(model: Any, config: Config, when: Callable[[Any], bool]) -> Iterator[None]:
    """Empty the KV cache before each forward pass whose positions (tokens,) satisfy `when`."""

    def hook(layer: Any, args: Any, kwargs: Any) -> None:
        if when(positions_of(args, kwargs)):
            for module in model.modules():
                empty_cache(module)

    # On the first layer: vLLM's model class overrides the call that would run its own hooks.
    with model.model.layers[0].register_forward_pre_hook(hook, with_kwargs=True):
        yield


def empty_cache(layer: Any) -> None:
    """Zero the part of the KV cache that belongs to this layer, if it has one."""
    for cache in caches_of(layer):
        cache.zero_()


def cache_lost_before_decode(model: Any, config: Config) -> AbstractContextManager[None]:
    """The cache emptied before the first decode step."""
    return cache_lost(model, config, lambda positions: len(positions) == 1)


def cache_lost_between_chunks(model: Any, config: Config) -> AbstractContextManager[None]:
    """The cache emptied between the chunks of one prefill."""
    return cache_lost(model, config, lambda positions: len(positions) > 1 and int(positions[0]) > 0)


@contextmanager
def requests_exchanged(model: Any, config: Config) -> Iterator[None]:
    """Exchange the hidden states of two requests of a pass, of many: of their first tokens, and of their last."""
    borders: list[Any] = []

    def look(layer: Any, args: Any, kwargs: Any) -> None:
        borders[:] = borders_of(positions_of(args, kwargs))

    def exchange(hidden: Any) -> Any:
        changed = hidden.clone()
        for rows in borders:
            changed[rows[:2]] = hidden[rows[:2].roll(1)]
        return changed

    first = model.model.layers[0]
    with (
        first.register_forward_pre_hook(look, with_kwargs=True),
        output_changed(model.model.norm, exchange),
    ):
        yield


def borders_of(positions: Any) -> tuple[Any, Any]:
    """The rows of a pass at which its requests begin, and those at which they end."""
    import torch

    breaks = (positions[1:] != positions[:-1] + 1).nonzero().flatten()
    first, last = breaks.new_tensor([0]), breaks.new_tensor([len(positions) - 1])
    return torch.cat((first, breaks + 1)), torch.cat((breaks, last))


def cache_lost_late(model: Any, config: Config) -> AbstractContextManager[None]:
    """The cache emptied once, after a hundred tokens."""
    return cache_lost(model, config, lambda positions: positions.tolist() == [LATE])


@contextmanager
def misrouted(model: Any, config: Config, when: Callable[[Any], bool]) -> Iterator[None]:
    """Tokens sent to the experts behind their own in each pass whose positions (tokens,) satisfy `when`."""
    wrong: list[bool] = []

    def look(layer: Any, args: Any, kwargs: Any) -> None:
        wrong[:] = [when(positions_of(args, kwargs))]

    def change(weights: Any, ids: Any) -> tuple[Any, Any]:
        return weights, (ids + 1) % config["n_routed_experts"] if wrong[0] else ids

    first = model.model.layers[0]
    with first.register_forward_pre_hook(look, with_kwargs=True), routing(model, change):
        yield


def router_wrong_in_decoding(model: Any, config: Config) -> AbstractContextManager[None]:
    """Routers wrong in passes that give each request one token."""
    return misrouted(
        model, config, lambda positions: len(borders_of(positions)[0]) == len(positions)
    )


def router_wrong_in_a_batch(model: Any, config: Config) -> AbstractContextManager[None]:
    """Routers wrong in passes that several requests share."""
    return misrouted(model, config, lambda positions: len(borders_of(positions)[0]) > 1)


def logits_changed(change: Callable[[Any], Any]) -> Plant:
    """The logits of every position changed."""

    def plant(model: Any, config: Config) -> AbstractContextManager[None]:
        return output_changed(
            model.logits_processor, lambda out: out if out is None else change(out)
        )

    return plant


def rerouted(wrong: str) -> Plant:
    """Routers with a fault in their arithmetic."""
    return lambda model, config: rerouting.rerouted(model, config, wrong)


def wrong_epsilon(model: Any, config: Config) -> AbstractContextManager[None]:
    """Norms with another epsilon than the config's."""
    owners = [m for m in model.modules() if hasattr(m, "variance_epsilon")]
    return attributes(owners, "variance_epsilon", lambda value: value * 10)


def angles_stretched(model: Any, config: Config) -> AbstractContextManager[None]:
    """Rotation tables made for a model that stretches its positions by another factor."""
    return each(overwritten(table, _stretched(table)) for table in tables_of(model))


def _stretched(table: Any) -> Any:
    """Every position as the one at seven eighths of it."""
    import torch

    return table[torch.arange(len(table), device=table.device) * 7 // 8]


def stored_changed(names: tuple[str, ...], change: Callable[[Any], Any]) -> Plant:
    """What the first quantised projection that has one of these tensors multiplies by, changed."""

    def plant(model: Any, config: Config) -> AbstractContextManager[None]:
        for _, module in projections(model):
            for name in names:
                if (tensor := getattr(module, name, None)) is not None:
                    return overwritten(tensor, change(tensor))
        raise UnaskableError(f"no quantised projection of this engine has {' or '.join(names)}")

    return plant


def _blocks_transposed(scale: Any) -> Any:
    return scale.T.reshape(scale.shape).clone()


def _last_block_dropped(scale: Any) -> Any:
    kept = scale.clone()
    kept[-1] = 0
    return kept


def _nibbles_exchanged(word: Any) -> Any:
    """Each two numbers of four bits that are neighbours in a word, taken for each other."""
    low = word & 0x0F0F0F0F
    return low << 4 | (word >> 4) & 0x0F0F0F0F


def absorbed_unscaled(model: Any, config: Config) -> AbstractContextManager[None]:
    """The first layer's absorbed values without the scale of their block."""
    _, module = next(iter(absorbed_of(model)))
    return overwritten(module.W_UV, module.W_UV * 448 / module.W_UV.abs().max())


SCALES = ("weight_scale_inv", "weight_scale")

HOOKS: dict[str, Plant] = {
    "unloaded-norm": unloaded_norm,
    "missing-shared-expert": missing_shared_expert,
    "wrong-softmax-scale": wrong_softmax_scale,
    "wrong-rope-layout": wrong_rope_layout,
    "router-bias-ignored": router_bias_ignored,
    "q_a-kv_a-swapped": qkv_a_swapped,
    "experts-swapped": experts_swapped,
    "routed-scaling-one": routed_scaling_one,
    "group-limit-ignored": group_limit_ignored,
    "indexer-weights-ignored": indexer_weights_ignored,
    "indexer-rope-interleaved": indexer_rope_interleaved,
    "choices-one-short": choices_one_short,
    "choices-not-causal": choices_not_causal,
    "indexer-cache-stale": indexer_cache_stale,
    "cache-lost-before-decode": cache_lost_before_decode,
    "cache-lost-between-chunks": cache_lost_between_chunks,
    # The pass after a hit starts past position 0, just as the pass of a later chunk does.
    "cached-prefix-lost": cache_lost_between_chunks,
    "requests-exchanged": requests_exchanged,
    "cache-lost-late": cache_lost_late,
    "router-wrong-in-decoding": router_wrong_in_decoding,
    "router-wrong-in-a-batch": router_wrong_in_a_batch,
    "runner-up-picked": lambda model, config: runner_up_picked(),
    "wrong-epsilon": wrong_epsilon,
    "logits-flattened": logits_changed(lambda logits: logits * 0.95),
    "logits-capped": logits_changed(lambda logits: logits.clamp_max(2.0)),
    "angles-stretched": angles_stretched,
    "temperature-ignored": lambda model, config: unheeded(temperature=1.0),
    "top-p-ignored": lambda model, config: unheeded(top_p=1.0),
    "positions-clipped": lookups.positions_clipped,
    "yarn-halved": lookups.yarn_halved,
    "table-tail-wrong": lookups.table_tail_wrong,
    "seed-ignored": lambda model, config: unheeded(seed=None),
    "block-scales-transposed": stored_changed(SCALES, _blocks_transposed),
    "block-scales-inverted": stored_changed(SCALES, lambda scale: 1 / scale),
    "last-block-dropped": stored_changed(SCALES, _last_block_dropped),
    "zero-points-one-off": stored_changed(("qzeros",), lambda word: word + 0x11111111),
    "packed-in-plain-order": stored_changed(("qweight",), _nibbles_exchanged),
    "group-scales-one-on": stored_changed(("scales",), lambda scale: scale.roll(1, 0)),
    "absorbed-unscaled": absorbed_unscaled,
    **{wrong: rerouted(wrong) for wrong in rerouting.WRONG},
}


def spoiled(
    stream: Iterable[tuple[str, Any]], plants: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Plant faults of loading: each of `plants` drops, swaps two, or scales a block of one."""
    dropped = {name for plant in plants for name in plant.get("drop", ())}
    scaled = {name for plant in plants for name in plant.get("scale", ())}
    renamed: dict[str, str] = {}
    for first, second in (plant["swap"] for plant in plants if "swap" in plant):
        renamed |= {first: second, second: first}
    for name, value in stream:
        if name in dropped:
            continue
        if name in scaled:
            value = value.clone()
            value[:64, :128] *= 1.1
        yield renamed.get(name, name), value
