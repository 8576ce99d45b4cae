"""A checkpoint's folder: which model its config.json states, and where its index says otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspatch.audit.finding import Severity
from dspatch.errors import CheckpointError
from dspatch.facts import Quantization, Rope, Variant
from dspatch.identify import ABSENT, differences, read, read_object
from dspatch.variants import table

INDEX = "model.safetensors.index.json"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with a checkpoint itself, whatever engine serves it."""

    severity: Severity
    title: str
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint: `variant` has its facts, `differs` where they are no published model's."""

    path: Path
    config: Mapping[str, Any]
    variant: Variant
    differs: tuple[str, ...]
    faults: tuple[Fault, ...]


def load(given: str) -> Checkpoint:
    """Read config.json, and the index of its tensors where there is one.

    Raises `CheckpointError` when there is no config.json or it cannot be read, and a `foreign` one
    when it is not DeepSeek's.
    """
    folder = Path(given).expanduser()
    path = folder / "config.json" if folder.is_dir() else folder
    config = _json(path, "config.json")
    variant, differs = _variant(path, config)
    tensors = _tensors(path.parent)
    drafts = _draft_layers(tensors or (), variant)
    facts = {**config, **_facts(tensors, drafts)} if tensors is not None else config
    return Checkpoint(
        path=path,
        config=facts,
        variant=variant,
        differs=differs,
        faults=tuple(_faults(path.parent, tensors, facts, variant, drafts)) if tensors else (),
    )


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {what}.",
            why="it says which model a checkpoint is; without it nothing can be told",
            next="name the folder that the model was downloaded to, or use --variant",
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read.", why=str(error), next="download it again, or use --variant"
        ) from None


def _variant(path: Path, config: Mapping[str, Any]) -> tuple[Variant, tuple[str, ...]]:
    """The published model that a config.json is nearest to, with the config's own facts in it."""
    stated = read(config)
    known = table().values()
    alike = [each for each in known if each.architecture == stated["architecture"]]
    if not alike:
        raise CheckpointError(
            f"{path} is of no DeepSeek model that dspatch knows.",
            why=f"its architecture is {stated['architecture']}",
            next="use --variant to audit for one of those that it knows",
            foreign=True,
        )
    differing = {each.name: differences(stated, each) for each in alike}
    name = min(differing, key=lambda each: len(differing[each]))
    _refuse_others(path, stated, table()[name])
    _refuse_types(path, stated, table()[name])
    told = tuple(f"{field}: {got!r}, published {said!r}" for field, got, said in differing[name])
    return (_with(table()[name], stated, path) if told else table()[name]), told


def _refuse_others(path: Path, stated: Mapping[str, Any], variant: Variant) -> None:
    """Raise for a model of somebody else's: an architecture that many share says nothing by itself."""
    vocabulary = stated["vocab_size"]
    if variant.architecture.startswith("Deepseek") or vocabulary == variant.vocab_size:
        return
    raise CheckpointError(
        f"{path} is of no DeepSeek model that dspatch knows.",
        why=f"it is a {variant.architecture} with a vocabulary of {vocabulary}; "
        f"{variant.name} has {variant.vocab_size}",
        next="a distilled model is served as its own family, and no finding is about that",
        foreign=True,
    )


def _refuse_types(path: Path, stated: Mapping[str, Any], variant: Variant) -> None:
    """Raise for a value that no config.json can have in its place, such as text for a number."""
    for field, said in variant.facts.items():
        got = stated[field]
        if got is None or said is None or got == ABSENT:
            continue
        if _kind(got) is not _kind(said):
            raise CheckpointError(
                f"{path} states what no model can be.",
                why=f"{field} is {got!r}; {variant.name} has {said!r}",
                next="mend it, or take the config.json that was published",
            )


def _kind(value: Any) -> type:
    """The kind of a value: whole and other numbers are one, and so are lists and tuples."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float
    return list if isinstance(value, tuple) else type(value)


def _with(variant: Variant, stated: Mapping[str, Any], path: Path) -> Variant:
    """A variant with the facts of a config.json in the place of its own; what it leaves out is its own."""
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {"rope": {}, "quantization": {}}
    for field, value in stated.items():
        group, _, key = field.partition(".")
        if value == ABSENT:
            continue
        if key:
            nested[group][key] = tuple(value) if isinstance(value, list) else value
        else:
            own[field] = value
    try:
        own["rope"] = replace(variant.rope, **nested["rope"])
        if nested["rope"].get("type") == "default":
            own["rope"] = Rope(type="default", theta=own["rope"].theta)
        own["quantization"] = _quantization(variant.quantization, nested["quantization"])
        return replace(variant, **own)
    except TypeError as error:
        raise CheckpointError(f"{path} states what no model can be.", why=str(error)) from None


def _quantization(said: Quantization | None, stated: Mapping[str, Any]) -> Quantization | None:
    """How a config.json says that its weights are quantised; it says so, or they are not."""
    if not stated:
        return None
    plain = Quantization(quant_method="", fmt="", activation_scheme="", weight_block_size=(1, 1))
    return replace(said or plain, **stated)


def _tensors(folder: Path) -> dict[str, str] | None:
    """The shard of each tensor, as the index lists them; `None` where there is no index."""
    if not (folder / INDEX).is_file():
        return None
    mapped = _json(folder / INDEX, INDEX).get("weight_map")
    return dict(mapped) if isinstance(mapped, dict) else None


def _facts(names: Collection[str], drafts: int) -> dict[str, Any]:
    """What an index says of a checkpoint, as facts that findings may name."""
    return {
        "index.mtp": drafts > 0,
        "index.correction_bias": any(name.endswith("e_score_correction_bias") for name in names),
        "index.scales": any(name.endswith("weight_scale_inv") for name in names),
        "index.kv_scales": any(re.search(r"\.(k|v|kv)_scale$", name) for name in names),
        "index.complete": not lacking(names),
    }


def lacking(names: Iterable[str]) -> tuple[str, ...]:
    """The tensors that a layer has not and another one of its kind has: dense, of experts, or ahead.

    What no layer of a kind has is not seen.
    """
    layers: dict[str, set[str]] = {}
    for name in names:
        if found := _LAYER.search(name):
            layers.setdefault(name[: found.end()], set()).add(name[found.end() :])
    kinds: dict[tuple[bool, bool], set[str]] = {}
    for parts in layers.values():
        kinds.setdefault(_layer_kind(parts), set()).update(parts)
    missing = (
        f"{layer}{part}"
        for layer, parts in layers.items()
        for part in kinds[_layer_kind(parts)] - parts
    )
    return tuple(sorted(missing))


def _layer_kind(parts: Iterable[str]) -> tuple[bool, bool]:
    heads = {part.partition(".")[0] for part in parts}
    return any(part.startswith("mlp.experts.") for part in parts), "eh_proj" in heads


def _draft_layers(names: Iterable[str], variant: Variant) -> int:
    numbers = {int(found[1]) for name in names if (found := _LAYER.search(name))}
    return len([number for number in numbers if number >= variant.num_hidden_layers])


def _faults(
    folder: Path,
    tensors: Mapping[str, str],
    facts: Mapping[str, Any],
    variant: Variant,
    drafts: int,
) -> Iterator[Fault]:
    """Where the index is not what config.json says, or not what lies in the folder."""
    shards = sorted(set(tensors.values()))
    gone = [shard for shard in shards if not (folder / shard).is_file()]
    if gone and len(gone) < len(shards):
        yield Fault(
            severity="crash",
            title=f"{len(gone)} of {len(shards)} files that the index names are not in the folder",
            evidence=", ".join(gone[:3]),
        )
    if (
        variant.quantization
        and variant.quantization.quant_method == "fp8"
        and not facts["index.scales"]
    ):
        yield Fault(
            severity="wrong",
            title="config.json says fp8, and no tensor of the index is a scale: it was converted to bf16",
            evidence="quantization_config is there, no *.weight_scale_inv is; remove the former",
        )
    if facts["index.scales"] and not facts.get("quantization_config"):
        yield Fault(
            severity="wrong",
            title="the index has scales of fp8 weights, and config.json has no quantization_config",
            evidence=next(name for name in tensors if name.endswith("weight_scale_inv")),
        )
    stated = int(facts.get("num_nextn_predict_layers") or 0)
    if stated > drafts:
        yield Fault(
            severity="crash",
            title=f"config.json states {stated} layers that predict ahead, the index has {drafts}",
            evidence=f"no tensor of layer {variant.num_hidden_layers + drafts}",
        )
    if variant.topk_method == "noaux_tc" and not facts["index.correction_bias"]:
        yield Fault(
            severity="crash",
            title="the router selects with a correction bias, and the index has none",
            evidence="topk_method is noaux_tc, no *.e_score_correction_bias is there",
        )
