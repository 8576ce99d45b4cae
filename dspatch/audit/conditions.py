"""What a finding says about a model's facts, held against them: holds, fails, or cannot be told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from dspatch.audit.cards import CONDITION
from dspatch.facts import Variant

TARGETS = ("cpu", "cuda", "rocm", "xpu")

_FORM = re.compile(r"\s*([\w.]+(?:\s*\+\s*[\w.]+)*)\s*(!=|<=|>=|=|<|>)\s*(\S.*?)\s*")
_OWN = "config."
_WORDS: Mapping[str, Any] = {"none": None, "true": True, "false": False}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


def is_readable(condition: str) -> bool:
    """Whether a condition has the form `name = value`, with any of `= != < <= > >=`; names may be added."""
    return _FORM.fullmatch(condition) is not None


def faults(
    facts: Iterable[str], targets: Iterable[str], cards: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """The conditions that nothing could meet, each with the key that it stands under."""
    for each in facts:
        if not is_readable(each):
            yield "facts", f"`{each}` is no condition such as `n_group > 1`"
    for each in targets:
        if each not in TARGETS:
            yield "targets", f"`{each}` is no target; expected one of {', '.join(TARGETS)}"
    for each in cards:
        if not CONDITION.fullmatch(each):
            yield "cards", f"`{each}` is no compute capability such as `sm90` or `<sm89`"


def holds(condition: str, facts: Mapping[str, Any]) -> bool | None:
    """Whether facts meet a condition; `None` when they do not say."""
    found = _FORM.fullmatch(condition)
    names = [name.strip() for name in found[1].split("+")] if found is not None else []
    if found is None or not all(name in facts for name in names):
        return None
    comparison, wanted = found[2], _value(found[3])
    have = _sum([facts[name] for name in names])
    if comparison in ("=", "!="):
        return _COMPARED[comparison](have, wanted)
    if not isinstance(have, int | float) or not isinstance(wanted, int | float):
        return False
    return _COMPARED[comparison](have, wanted)


def _sum(values: list[Any]) -> Any:
    """One value as it is; several that are numbers as their sum, otherwise none."""
    if len(values) == 1:
        return values[0]
    return sum(values) if all(isinstance(each, int | float) for each in values) else None


def facts_of(variant: Variant, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The facts of a model by name: those of `Variant.facts`, and shorthands.

    `rope_scaling` and `quantization` are the type and the method, none where there is no such part.
    Only a checkpoint has `checkpoint.NAME`, the same facts as its own, `config.KEY`, what its
    config.json says or leaves out, and `index.…`.
    """
    scaled = variant.rope.type != "default"
    facts = {
        **variant.facts,
        "rope_scaling": variant.rope.type if scaled else None,
        "quantization": variant.quantization.quant_method if variant.quantization else None,
        "attention": variant.attention,
    }
    return facts if config is None else _Stated(facts, config)


class _Stated(dict[str, Any]):
    """Facts, with those that only a checkpoint has; a key that its config.json has not is none."""

    def __init__(self, facts: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        super().__init__({**facts, **{f"checkpoint.{name}": facts[name] for name in facts}})
        self.update({name: value for name, value in config.items() if name.startswith("index.")})
        self._config = config

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or str(name).startswith(_OWN)

    def __missing__(self, name: str) -> Any:
        return self._config.get(name.removeprefix(_OWN))


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text.strip("\"'")
