"""Compare operation by operation: where, at which positions and in what manner the engine differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from . import metrics

Tensors = Mapping[str, Tensor]
SHOWN = 6  # values of one token


def compare(
    expected: Tensors, found: Tensors, tokens: int, band: float, scale: float
) -> dict[str, Any]:
    """One prompt: `rows` that both have, `found` by operation, and the `unobserved` operations.

    Positions from `tokens` on belong to another text and are left out. `band` is the relative
    difference up to which a row is right, `scale` the factor that an engine may have put on the
    router's weights already.
    """
    names = [name for name in expected if name.startswith("place.")]
    whole = dict(_whole(expected, found, tokens, band))
    if "seen" not in found:
        return {"rows": [], "found": whole, "unobserved": [_own(name) for name in names]}
    positions = expected["rows"]
    kept = found["seen"].bool() & (positions < tokens)
    out: dict[str, Any] = {"rows": positions[kept].tolist(), "found": {}, "unobserved": []}
    for name in names:
        if name not in found or found[name].shape != expected[name].shape:
            out["unobserved"].append(_own(name))
            continue
        pair = expected[name][kept].double(), found[name][kept].double()
        if name.endswith(".router"):
            out["found"] |= _router(_own(name), *pair, positions[kept], band, scale)
        else:
            out["found"][_own(name)] = _place(*pair, positions[kept], band)
    out["found"] |= whole
    return out


def _whole(
    expected: Tensors, found: Tensors, tokens: int, band: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the engine shows without being looked into: what each layer adds up to, and the logits."""
    layers = {
        name: f"{name.removeprefix('layer.')}.layer" for name in found if name.startswith("layer.")
    }
    for name, own in {**layers, "logits": "head"}.items():
        if name not in found or found[name].shape[-1] != expected[name].shape[-1]:
            continue
        # Logits of a prompt from the cache begin late; nobody reads the last token.
        first = len(expected["ids"]) - 1 - len(found[name]) if name == "logits" else 0
        rows = expected["rows"]
        kept = rows[(rows >= first) & (rows < min(tokens, first + len(found[name])))]
        pair = expected[name][kept].double(), found[name][kept - first].double()
        if len(kept):
            yield own, _place(*pair, kept, band)


def _own(name: str) -> str:
    return name.removeprefix("place.")


def _place(expected: Tensor, found: Tensor, positions: Tensor, band: float) -> dict[str, Any]:
    """The relative difference over all rows and of each, to three digits.

    Of the rows off: positions, manner, one token's values.
    """
    rows = metrics.by_row(found, expected)
    off = (~(rows <= band)).nonzero().flatten().tolist()
    out: dict[str, Any] = {
        "relative": metrics.relative(found, expected),
        "each": metrics.short(rows),
        "off": positions[off].tolist(),
    }
    if off:
        out |= _manner(expected[off], found[off], band)
        out |= _token(expected[off[0]], found[off[0]], int(positions[off[0]]))
    return out


def _manner(expected: Tensor, found: Tensor, band: float) -> dict[str, Any]:
    """How the rows differ: not finite, zero, by one factor, by their order, or otherwise."""
    if not bool(found.isfinite().all()):
        return {"manner": "not-finite", "factor": None}
    if not bool(found.any()):
        return {"manner": "zero", "factor": None}
    factor = float((expected * found).sum() / expected.square().sum().clamp_min(1e-300))
    if metrics.relative(found, factor * expected) <= band:
        return {"manner": "factor", "factor": factor}
    ordered = metrics.relative(found.abs().sort(-1)[0], expected.abs().sort(-1)[0])
    return {"manner": "order" if ordered <= band else "other", "factor": None}


def _token(expected: Tensor, found: Tensor, position: int) -> dict[str, Any]:
    """The first values of one token from where they differ, and how much of its width does."""
    differs = ((expected - found).abs() > 1e-4 * expected.abs().max()) | ~found.isfinite()
    columns = differs.nonzero().flatten().tolist() or [0]
    window = slice(columns[0], columns[0] + SHOWN)
    return {
        "position": position,
        "column": columns[0],
        "columns": [len(columns), expected.shape[0]],
        "expected": [f"{value:.6g}" for value in expected[window].tolist()],
        "got": [f"{value:.6g}" for value in found[window].tolist()],
    }


def _router(
    name: str, expected: Tensor, found: Tensor, positions: Tensor, band: float, scale: float
) -> dict[str, Any]:
    """The router's choice and, where it is the oracle's, the weights that it gives."""
    layer = name.removesuffix("router")
    ours, theirs = found != 0, expected != 0
    wrong = (ours != theirs).any(-1)
    off, same = (rows.nonzero().flatten().tolist() for rows in (wrong, ~wrong))
    choice: dict[str, Any] = {
        "relative": len(off) / max(len(expected), 1),
        "off": positions[off].tolist(),
    }
    if off:
        sample = {"position": int(positions[off[0]]), "column": 0, "columns": [0, 0]}
        tokens = {"expected": theirs[off[0]], "got": ours[off[0]]}
        chosen = {
            key: [str(i) for i in row.nonzero().flatten().tolist()] for key, row in tokens.items()
        }
        choice |= {"manner": "other", "factor": None, **sample, **chosen}
    if not same:
        return {f"{layer}router_choice": choice}
    # Some engines put the routed scaling on the weights, others on what the experts give.
    bare, scaled = (
        _place(factor * expected[same], found[same], positions[same], band) for factor in (1, scale)
    )
    weight = min(bare, scaled, key=lambda one: float(one["relative"]))
    return {f"{layer}router_choice": choice, f"{layer}router_weight": weight}
