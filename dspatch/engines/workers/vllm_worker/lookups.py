"""Faults of long contexts: what is looked up in a long text is then not found."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from .engine import attentions_of, tables_of
from .plant import attributes, each, overwritten

Config = Mapping[str, Any]

TAIL = 64  # tokens at the end of a text whose blocks are taken for others


def positions_clipped(model: Any, config: Config) -> AbstractContextManager[None]:
    """Rotation that knows no position past half of the text."""
    import torch

    last = config["passkey"]["tokens"] // 2
    return each(
        overwritten(table, table[torch.arange(len(table), device=table.device).clamp_max(last)])
        for table in tables_of(model)
    )


def yarn_halved(model: Any, config: Config) -> AbstractContextManager[None]:
    """Rotation tables of a model that YaRN stretches by half the factor."""
    return each(overwritten(table, _of_half(table, config)) for table in tables_of(model))


def _of_half(table: Any, config: Config) -> Any:
    """The table with the slow pairs, which YaRN stretches by its whole factor, twice as fast."""
    import torch

    dim, base = config["qk_rope_head_dim"], float(config["rope_theta"])
    factor = config["rope_scaling"]["factor"]
    plain = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    positions = torch.arange(len(table), dtype=torch.float64)
    made = positions[:, None] * plain * 2 / factor
    # What the engine's table says of position one tells which pairs are stretched wholly.
    sine = table[1, dim // 2 :].double().cpu()
    gain = float(table[0, 0])
    slow = (sine / gain - (plain / factor).sin()).abs() < 1e-6
    cosine, sines = table[:, : dim // 2].double().cpu(), table[:, dim // 2 :].double().cpu()
    cosine = torch.where(slow, made.cos() * gain, cosine)
    sines = torch.where(slow, made.sin() * gain, sines)
    return torch.cat((cosine, sines), -1).to(table.device, table.dtype)


def table_tail_wrong(model: Any, config: Config) -> AbstractContextManager[None]:
    """Block tables whose last entries name the text's first block: what the end of it holds is lost."""
    start = config["passkey"]["tokens"] - TAIL
    # Before a backend plans by its table; what is written goes where it should.
    builders = {one.get_attn_backend().get_builder_cls() for one in attentions_of(model)}
    return attributes(builders, "build", lambda build: _with_tail(build, start))


def _with_tail(build: Callable[..., Any], start: int) -> Callable[..., Any]:
    signature = inspect.signature(build)

    def built(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        common = copy.copy(bound.arguments["common_attn_metadata"])
        table = common.block_table_tensor.clone()
        table[:, start // bound.arguments["self"].kv_cache_spec.block_size :] = table[:, :1]
        common.block_table_tensor = table
        bound.arguments["common_attn_metadata"] = common
        return build(*bound.args, **bound.kwargs)

    return built
