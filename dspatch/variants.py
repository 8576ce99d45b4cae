"""The DeepSeek models by name, from `variants.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from dspatch import tomlfile
from dspatch.errors import UnknownVariantError
from dspatch.facts import Quantization, Rope, Variant

__all__ = ["Quantization", "Rope", "Variant", "names", "table", "twins", "variant"]

TABLE = Path(__file__).with_name("variants.toml")
NEVER = "never-published"


def names() -> tuple[str, ...]:
    """The whole DeepSeek family of a job: every variant but those that a job has to name."""
    return tuple(name for name, each in table().items() if not each.by_name)


def variant(name: str) -> Variant:
    """The variant of that name or alias, in any case, `-base`, `-chat` and `-instruct` left out.

    Raises `UnknownVariantError` with the nearest names, and why, for a name that never existed.
    """
    known = {alias: each for each in table().values() for alias in (each.name, *each.aliases)}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    whole, _, form = plain.partition("/")
    if form and whole in known:
        raise UnknownVariantError(
            f"{name} is a form of a small model, which only conformance makes.",
            why=f"patches and wheels are made for {known[whole].name}, in whatever form it is saved",
            next=f"use --variant {known[whole].name}, then dspatch conformance --variant {name}",
        )
    never: dict[str, Any] = _data().data[NEVER]
    if plain in never:
        what = f"No DeepSeek model named {name!r} was ever published."
        why, near = never[plain]["why"] + "; ", list(never[plain]["nearest"])
    else:
        what, why = f"dspatch knows no DeepSeek model named {name!r}.", ""
        close = get_close_matches(plain, known, n=3, cutoff=0.5)
        near = list(dict.fromkeys(known[alias].name for alias in close)) or list(names())
    raise UnknownVariantError(
        what,
        why=f"{why}nearest: {', '.join(near)}",
        next=f"use --variant {near[0]}; there are {', '.join(names())}",
    )


def twins(one: Variant) -> tuple[str, ...]:
    """The other variants with exactly these facts: no config.json tells them apart."""
    return tuple(each.name for each in table().values() if each != one and each.facts == one.facts)


@cache
def table() -> Mapping[str, Variant]:
    """All variants by name, in the order of the table."""
    rows = {name: row for name, row in _data().data.items() if name != NEVER}
    return {name: _variant(name, _merged(name, rows)) for name in rows}


@cache
def _data() -> tomlfile.TomlFile:
    return tomlfile.load(TABLE, UnknownVariantError)


def _plain(name: str) -> str:
    plain = name.lower().removeprefix("deepseek-ai/")
    for suffix in ("-base", "-chat", "-instruct"):
        plain = plain.removesuffix(suffix)
    return plain


def _merged(name: str, rows: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = rows[name]
    if "like" not in row:
        return dict(row)
    inherited = _merged(row["like"], rows)
    own = {"aliases": [], "assumed": [], "by_name": False} | row
    for key in ("rope", "quantization"):
        if key in inherited or key in own:
            own[key] = inherited.get(key, {}) | own.get(key, {})
    return inherited | own


def _variant(name: str, row: Mapping[str, Any]) -> Variant:
    _data().check_keys(row, (field.name for field in fields(Variant)), within=name)
    values = dict(row) | {key: tuple(row.get(key, ())) for key in ("aliases", "assumed")}
    values["rope"] = Rope(**row["rope"])
    if "quantization" in row:
        block = tuple(row["quantization"]["weight_block_size"])
        values["quantization"] = Quantization(**row["quantization"] | {"weight_block_size": block})
    return Variant(name=name, **values)
