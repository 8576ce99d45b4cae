"""Compare operation by operation: where, at which positions and in what manner the engine differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import metrics, operations
from .probing import Model
from .twin import below

Tensors = Mapping[str, Tensor]
SHOWN = 6  # values of one token


def compare(
    expected: Tensors,
    found: Tensors,
    tokens: int,
    band: float,
    scale: float,
    model: Model | None = None,
) -> dict[str, Any]:
    """One prompt: `rows` that both have, `found` by operation, and the `unobserved` operations.

    Positions from `tokens` on belong to another text and are left out. `band` is the relative
    difference up to which a row is right, `scale` the factor that an engine may have put on the
    router's weights already. With a `model` operations are held against what is right for the engine's `own` input
    to them, which their entries say: `each` row by how many times plain torch's own error it is off.
    """
    names = [name for name in expected if name.startswith("place.")]
    whole = dict(_whole(expected, found, tokens, band))
    if "seen" not in found:
        return {"rows": [], "found": whole, "unobserved": [_own(name) for name in names]}
    rows = expected["rows"]
    kept = found["seen"].bool() & (rows < tokens)
    positions, out = rows[kept], {**whole}
    shown = [n for n in names if n in found and found[n].shape == expected[n].shape]
    beside = {_own(n): (expected[n][kept], found[n][kept], None) for n in shown}
    by_input = _by_input(expected, found, kept, model) if model else {}
    if model:
        # What a router chose without showing its logits is held against the oracle's choice.
        beside = {name: pair for name, pair in beside.items() if name.endswith(".router")}
    for name, (right, got, unit) in {**beside, **by_input}.items():
        by = model.times if model and name in by_input else band
        of = _Rows(positions=positions[len(positions) - len(got) :], band=by, unit=unit)
        pair = right.double(), got.double(), of
        told = _router(name, *pair, scale) if name.endswith(".router") else {name: _place(*pair)}
        mark = {"own": True} if name in by_input else {}
        out |= {key: entry | mark for key, entry in told.items()}
    unobserved = [own for n in names if (own := _own(n)) not in {**beside, **by_input}]
    return {"rows": positions.tolist(), "found": out, "unobserved": unobserved}


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The positions (rows,) of what is compared, up to which difference a row is right, and in which unit (rows,)."""

    positions: Tensor
    band: float
    unit: Tensor | None = None

    def of(self, differences: Tensor) -> Tensor:
        """The relative differences of rows in these units."""
        return differences if self.unit is None else differences / self.unit

    @property
    def relative(self) -> float:
        """Up to which relative difference all of them together are right."""
        if self.unit is None or not len(self.unit):
            return self.band
        return self.band * float(self.unit.median())

    def some(self, kept: Tensor) -> _Rows:
        """Some of the rows."""
        unit = None if self.unit is None else self.unit[kept]
        return replace(self, positions=self.positions[kept], unit=unit)


def _by_input(
    expected: Tensors, found: Tensors, kept: Tensor, model: Model
) -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    """Each operation's right result for the engine's own input, the engine's, and plain torch's error, by row.

    At positions that are kept. Logits of a prompt from the cache begin late, so that theirs may be fewer.
    """
    text = operations.Text(
        config=model.config,
        weights=model.held,
        ids=expected["ids"],
        positions=expected["rows"][kept],
        places={name: value[kept] for name, value in below(found, "place.").items()},
        context=below(found, "context."),
        choices=below(found, "chosen."),
    )
    text = operations.undivided(text, model.stretch)
    dtype = getattr(torch, model.dtype)
    both = text, replace(text, dtype=dtype)
    right, coarse = (operations.pairs(one) for one in both)
    out: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
        name: (*pair, operations.rounding(pair[0], coarse[name][0], dtype))
        for name, pair in right.items()
    }
    first = len(text.ids) - 1 - len(found["logits"])
    read = text.positions[text.positions >= first] - first
    wanted, plain = (operations.headed(one) for one in both)
    if wanted is not None and plain is not None and len(read):
        unit = operations.rounding(wanted, plain, dtype)[-len(read) :]
        out["head"] = wanted[-len(read) :], found["logits"][read], unit
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
            yield own, _place(*pair, _Rows(positions=kept, band=band))


def _own(name: str) -> str:
    return name.removeprefix("place.")


def _place(expected: Tensor, found: Tensor, of: _Rows) -> dict[str, Any]:
    """The relative difference over all rows, and of each in their units, to three digits.

    Of the rows off: positions, manner, one token's values.
    """
    rows = of.of(metrics.by_row(found, expected))
    off = (~(rows <= of.band)).nonzero().flatten().tolist()
    out: dict[str, Any] = {
        "relative": metrics.relative(found, expected),
        "each": metrics.short(rows),
        "off": of.positions[off].tolist(),
    }
    if off:
        out |= _manner(expected[off], found[off], of.relative)
        out |= _token(expected[off[0]], found[off[0]], int(of.positions[off[0]]))
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


def _router(name: str, expected: Tensor, found: Tensor, of: _Rows, scale: float) -> dict[str, Any]:
    """The router's choice and, where it is the oracle's, the weights that it gives."""
    layer = name.removesuffix("router")
    ours, theirs = found != 0, expected != 0
    wrong = (ours != theirs).any(-1)
    off, same = (rows.nonzero().flatten().tolist() for rows in (wrong, ~wrong))
    choice: dict[str, Any] = {
        "relative": len(off) / max(len(expected), 1),
        "off": of.positions[off].tolist(),
    }
    if off:
        sample = {"position": int(of.positions[off[0]]), "column": 0, "columns": [0, 0]}
        tokens = {"expected": theirs[off[0]], "got": ours[off[0]]}
        chosen = {
            key: [str(i) for i in row.nonzero().flatten().tolist()] for key, row in tokens.items()
        }
        choice |= {"manner": "other", "factor": None, **sample, **chosen}
    if not same:
        return {f"{layer}router_choice": choice}
    # Some engines put the routed scaling on the weights, others on what the experts give.
    bare, scaled = (
        _place(factor * expected[same], found[same], of.some(same)) for factor in (1, scale)
    )
    weight = min(bare, scaled, key=lambda one: float(one["relative"]))
    return {f"{layer}router_choice": choice, f"{layer}router_weight": weight}
