"""Faults of long contexts: what is looked up in a long text is then not found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .plant import each, overwritten

Config = Mapping[str, Any]

TAIL = 64  # tokens at the end of a text whose blocks are taken for others


def _tables(model: Any) -> list[Any]:
    return [m.cos_sin_cache for m in model.modules() if hasattr(m, "cos_sin_cache")]


def positions_clipped(model: Any, config: Config) -> AbstractContextManager[None]:
    """Rotation that knows no position past half of the text."""
    import torch

    last = config["passkey"]["tokens"] // 2
    return each(
        overwritten(table, table[torch.arange(len(table), device=table.device).clamp_max(last)])
        for table in _tables(model)
    )


def yarn_halved(model: Any, config: Config) -> AbstractContextManager[None]:
    """Rotation tables of a model that YaRN stretches by half the factor."""
    return each(overwritten(table, _of_half(table, config)) for table in _tables(model))


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


@contextmanager
def table_tail_wrong(model: Any, config: Config) -> Iterator[None]:
    """Block tables whose last entries name the text's first block: what the end of it holds is lost."""
    changed: list[tuple[Any, Any]] = []
    seen = 0
    start = config["passkey"]["tokens"] - TAIL

    def spoil(layer: Any, args: Any, kwargs: Any) -> None:
        nonlocal seen
        for table, size in _block_tables():
            seen += 1
            changed.append((table, table.clone()))
            table[:, start // size :] = table[:, :1]

    def mend(layer: Any, args: Any, output: Any) -> None:
        while changed:
            table, before = changed.pop()
            table.copy_(before)

    layers = model.model.layers
    with (
        layers[0].register_forward_pre_hook(spoil, with_kwargs=True),
        layers[-1].register_forward_hook(mend),
    ):
        yield
    if not seen:
        raise LookupError("the attention of this engine shows no block tables")


def _block_tables() -> list[tuple[Any, int]]:
    """The block tables of the pass under way, (requests, blocks), and how many tokens a block holds."""
    from vllm.forward_context import get_forward_context

    known = get_forward_context()
    layers = known.attn_metadata if isinstance(known.attn_metadata, Mapping) else {}
    found: dict[int, tuple[Any, int]] = {}
    for name, metadata in layers.items():
        cache = known.no_compile_layers[name].kv_cache
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        for part in (metadata, *vars(metadata).values()):
            for key, value in (getattr(part, "__dict__", None) or {}).items():
                if "block_table" in key and getattr(value, "ndim", 0) == 2:
                    found[value.data_ptr()] = (value, int(cache.shape[-2]))
    return list(found.values())
