"""Where an engine first parts from the oracle: the layer, the operation, one token's values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dspatch.conformance import statistic, tolerance
from dspatch.conformance.causes import knowledge
from dspatch.conformance.checks import golden, inside
from dspatch.conformance.checks.seen import Prompts, Seen
from dspatch.conformance.checks.weights import lost

Kind = Literal["load", "weights", "run"]
RUNS = ("alone", "again", "together")
AFTER = 10**6  # where what follows the last layer stands in the order
SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """The first place that is wrong.

    `layer` is `None` outside the layers, `operation` empty where no place could be told. Of a
    `run`: the prompt, which `rows` are wrong and in which `manner`, and one token at `position`:
    values from `column` on, `columns` of how many. `unobserved` are the places before it that
    nobody could look at, after the last that was seen right.
    """

    kind: Kind
    layer: int | None
    operation: str
    detail: str = ""
    run: str = ""
    prompt: str = ""
    rows: str = ""
    manner: str = ""
    factor: float | None = None
    relative: float | None = None
    position: int | None = None
    column: int = 0
    columns: tuple[int, int] = (0, 0)
    expected: tuple[str, ...] = ()
    got: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Layer and operation as `0.rope`, or the operation alone."""
        return self.operation if self.layer is None else f"{self.layer}.{self.operation}"

    def as_dict(self) -> dict[str, Any]:
        """The symptom as JSON values."""
        relative = self.relative
        finite = relative is None or relative < float("inf")
        return {**asdict(self), "place": self.place, "relative": relative if finite else "inf"}


def find(seen: Seen, band: float | None) -> Symptom | None:
    """The first symptom: of the start, of the weights, or of a run's numbers outside the band, if there is one."""
    if seen.facts.get("error"):
        return _stopped(str(seen.facts["error"]))
    found = _weights(seen)
    if found is not None or (band is None and not statistic.narrow("layers.inside", seen.dtype)):
        return found
    return next((s for run in RUNS if (s := _run(seen, run, band))), None)


def _stopped(error: str) -> Symptom:
    layer, operation = _of_tensor(error)
    return Symptom(kind="load", layer=layer, operation=operation, detail=error)


def _weights(seen: Seen) -> Symptom | None:
    weights = seen.measures.get("weights")
    if not weights or not weights["compared"]:
        return None
    told = {**lost(weights, seen.config), "not what the checkpoint has:": weights["differing"]}
    wrong = [(_order(*_of_tensor(name)), name, what) for what in told for name in told[what]]
    if not wrong:
        return None
    _, first, what = min(wrong)
    layer, operation = _of_tensor(first)
    others = len({name for _, name, _ in wrong}) - 1
    more = f" and {others} more" if others else ""
    return Symptom(kind="weights", layer=layer, operation=operation, detail=f"{what} {first}{more}")


def _of_tensor(text: str) -> tuple[int | None, str]:
    """Layer and operation of the tensor that a text names; neither when it names none."""
    layer = re.search(r"layers\.(\d+)\.", text)
    fitting = (op for pattern, op in knowledge().tensors.items() if re.search(pattern, text))
    operation = next(fitting, "")
    return (int(layer[1]) if layer and operation else None), operation


def _run(seen: Seen, run: str, band: float | None) -> Symptom | None:
    prompts = seen.prompts(run)
    choices = tolerance.find("indexer.choices", seen.dtype, seen.device)
    missed = choices.limit if choices else 0.0
    narrow = statistic.narrow("layers.inside", seen.dtype)
    beyond = frozenset([*_routers(seen, run), *_beyond(seen, prompts)] if narrow else ())
    of = _Judge(narrow=narrow, band=band, missed=missed, beyond=beyond)
    wrong = [
        (_order(*_split(name)), prompt, name, entry)
        for prompt, measures in prompts.items()
        for name, entry in _entries(measures, of)
    ]
    if not wrong:
        return None
    _, prompt, name, entry = min(wrong, key=lambda one: one[:3])
    layer, operation = _split(name)
    return Symptom(
        kind="run",
        layer=layer,
        operation=operation,
        run=run,
        prompt=prompt,
        rows=_rows(entry, prompts[prompt]),
        unobserved=tuple(_unobserved(inside.places(prompts[prompt]), name)),
        **_values(entry),
    )


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """What is wrong of one prompt: beyond `band`, or a score `missed`.

    In a `narrow` dtype, where rounding turns routers, that holds of operations by the engine's own input to them;
    of what is held against the oracle's those are wrong that are `beyond`, by the typical token of all prompts.
    Where nobody knows the `band`, these alone are.
    """

    narrow: bool
    band: float | None
    missed: float
    beyond: frozenset[str]

    def wrong(self, name: str, entry: Mapping[str, Any]) -> bool:
        """Whether an operation is, in any token."""
        if self.narrow and (not entry.get("own") or name in self.beyond):
            return name in self.beyond
        return bool(entry["off"]) and self.band is not None

    def whole(self, name: str, values: Sequence[float]) -> bool:
        """Whether a layer or the logits are, over all positions; `values` are those of several parts."""
        if self.narrow:
            return name in self.beyond
        return not max(map(statistic.rank, values), default=0.0) <= (self.band or 0.0)


def _beyond(seen: Seen, prompts: Prompts) -> Iterator[str]:
    """The layers' ends and the logits whose median token of all prompts is beyond the limit of golden.fp32."""
    limit = tolerance.find("golden.fp32", seen.dtype, seen.device)
    for value, name in golden.medians(prompts):
        if limit and not value <= limit.limit:
            yield _place(name)


def _routers(seen: Seen, run: str) -> frozenset[str]:
    """The routers with a choice that golden.routes does not grant; none where nobody knows what it may."""
    limit = tolerance.find("golden.routes", seen.dtype, seen.device)
    if limit is None:
        return frozenset()
    choices = (
        row for measures in seen.prompts(run).values() for row in measures.get("experts", ())
    )
    return frozenset(
        f"{layer}.{inside.CHOICE}" for layer, missed, *_ in choices if not missed <= limit.limit
    )


def _place(state: str) -> str:
    """The place of a state that golden.fp32 names."""
    own = {"final": "final_norm", "logits": "head"}
    return own.get(state, f"{state.removeprefix('layer.')}.layer")


def _entries(measures: Mapping[str, Any], judge: _Judge) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What is outside the band on one prompt: operations, an indexer's choices, layers, logits."""
    found = inside.places(measures)["found"]
    wrong = {name for name, entry in found.items() if judge.wrong(name, entry)}
    yield from ((name, entry) for name, entry in found.items() if name in wrong)
    for layer, worst, differing, rows in measures.get("choices", ()):
        if not worst <= judge.missed:
            yield f"{layer}.indexer", {"relative": differing / max(rows, 1)}
    for name, value in measures.get("layers", ()):
        own = _place(name)
        # Counted over all positions, where the places above have some of them.
        if own not in wrong and judge.whole(own, [value]):
            yield own, {"relative": value}
    logits = [v for key in ("prefill_rel", "decode_rel") if (v := measures.get(key)) is not None]
    # A text that goes another way is measured up to there, so that its logits still compare.
    if logits and "head" not in wrong and judge.whole("head", logits):
        yield "head", {"relative": max(logits)}


def _values(entry: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("relative", "manner", "factor", "position", "column")
    own = {key: entry[key] for key in keys if key in entry}
    listed = {key: tuple(entry[key]) for key in ("columns", "expected", "got") if key in entry}
    return own | listed


def _rows(entry: Mapping[str, Any], measures: Mapping[str, Any]) -> str:
    """Which positions are wrong, as far as they were kept; empty where nobody counted."""
    off, kept = entry.get("off", ()), inside.places(measures)["rows"]
    if not off:
        return ""
    length, chunk = measures["tokens"], next(iter(measures["forwards"]), 0)
    if off[0] >= length:
        return "generated"
    if list(off) == [position for position in kept if position > 0]:
        return "every" if 0 not in kept else "not-first"
    if list(off) == list(kept):
        return "every"
    after = [position for position in kept if position >= chunk]
    return "later-chunk" if 0 < chunk <= off[0] and list(off) == after else "some"


def _unobserved(places: Mapping[str, Any], first: str) -> list[str]:
    """The places that nobody saw between the last one seen right and the first one wrong."""
    end = _order(*_split(first))
    right = [o for name in places["found"] if (o := _order(*_split(name))) < end]
    hidden = {name: _order(*_split(name)) for name in places["unobserved"]}
    between = [name for name, o in hidden.items() if max(right, default=(-2, 0)) < o < end]
    return sorted(between, key=lambda name: hidden[name])


def _split(name: str) -> tuple[int | None, str]:
    layer, _, operation = name.rpartition(".")
    return (int(layer) if layer else None), operation


def _order(layer: int | None, operation: str) -> tuple[int, int]:
    names: Sequence[str] = list(knowledge().places)
    number = names.index(operation) if operation in names else len(names)
    if layer is not None:
        return layer, number
    return (-1 if operation == "embed" else AFTER), number
