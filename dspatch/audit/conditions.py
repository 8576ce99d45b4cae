"""What a finding says about a model's facts, held against them: holds, fails, or cannot be told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from dspatch.facts import Variant

_FORM = re.compile(r"\s*([\w.]+)\s*(!=|<=|>=|=|<|>)\s*(\S.*?)\s*")
_WORDS: Mapping[str, Any] = {"none": None, "true": True, "false": False}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


def is_readable(condition: str) -> bool:
    """Whether a condition has the form `name = value`, with any of `= != < <= > >=`."""
    return _FORM.fullmatch(condition) is not None


def holds(condition: str, facts: Mapping[str, Any]) -> bool | None:
    """Whether facts meet a condition; `None` when they do not say."""
    found = _FORM.fullmatch(condition)
    if found is None or found[1] not in facts:
        return None
    name, comparison, text = found.groups()
    have, wanted = facts[name], _value(text)
    if comparison in ("=", "!="):
        return _COMPARED[comparison](have, wanted)
    if have is None or isinstance(have, str) or not isinstance(wanted, int | float):
        return False
    return _COMPARED[comparison](have, wanted)


def facts_of(variant: Variant, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The facts of a model by name: those of `Variant.facts`, shorthands, and config.json's own keys.

    `rope_scaling` and `quantization` are the type and the method, none where there is no such part.
    """
    facts = variant.facts
    scaled = variant.rope.type != "default"
    facts["rope_scaling"] = variant.rope.type if scaled else None
    facts["quantization"] = variant.quantization.quant_method if variant.quantization else None
    facts["attention"] = variant.attention
    for key, value in (config or {}).items():
        if key not in facts and not isinstance(value, dict | list):
            facts[key] = value
    return facts


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
