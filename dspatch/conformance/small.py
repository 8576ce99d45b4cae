"""Small models: what stays of a published model, what shrinks, the forms that it is tried in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dspatch import variants
from dspatch.errors import UnknownVariantError
from dspatch.facts import Variant
from dspatch.paths import PACKAGE
from dspatch.tomlfile import load

SEED = 0
WRITTEN = "float32"  # the dtype of a checkpoint's weights, where no form says another


@dataclass(frozen=True, kw_only=True)
class Case:
    """One small model: `deepseek-v3`, in another form `deepseek-v3/plain-rope`, in two `…/plain-rope/sixteen-heads`.

    `dice` is the seed of its prompts. One of the user's own lies in the folder `source`, whose files
    have the hashes `sources`. `stored` names how its weights are quantised, where they are.
    """

    name: str
    variant: str
    config: Mapping[str, Any]
    written_by: str = "published"
    stored: str = ""
    seed: int = SEED
    dice: int | None = None
    source: Path | None = None
    sources: tuple[str, ...] = ()

    @property
    def features(self) -> dict[str, Any]:
        """The config, and how the weights are `stored` where they are quantised: what checks and faults go by."""
        return {**self.config, **({"stored": self.stored} if self.stored else {})}

    @property
    def sparse_layers(self) -> list[int]:
        """The layers with a router."""
        return list(range(self.config["first_k_dense_replace"], self.config["num_hidden_layers"]))


@cache
def rules() -> Mapping[str, Any]:
    """The shrink rules, the prompts and the forms, from small.toml."""
    return load(PACKAGE / "conformance" / "small.toml", UnknownVariantError).data


def case(name: str) -> Case:
    """The small model of a variant, in the forms after its slashes, one after the other.

    Raises `UnknownVariantError` for a variant or form without a small model.
    """
    word, *forms = name.split("/")
    variant = variants.variant(word)
    config, written_by, stored = shrunk(variant), "published", ""
    for form in forms:
        chosen = _form(form, variant.name)
        changes = {k: None if v == "none" else v for k, v in chosen.get("changes", {}).items()}
        changes |= chosen.get("compressed", {}) if config.get("q_lora_rank") else {}
        config |= changes
        written_by, stored = chosen.get("written-by", written_by), chosen.get("stored", stored)
    return Case(
        name="/".join([variant.name, *forms]),
        variant=variant.name,
        config=config,
        written_by=written_by,
        stored=stored,
    )


def _form(name: str, variant: str) -> Mapping[str, Any]:
    known: Mapping[str, Mapping[str, Any]] = rules()["forms"]
    if name not in known:
        raise UnknownVariantError(
            f"There is no form {name!r} of a small model.",
            why=f"small.toml has {', '.join(known)}.",
            next=f"try {variant}/{next(iter(known))}",
        )
    return known[name]


def judged_in(name: str, dtype: str) -> bool:
    """Whether a small model can be judged in a dtype: in a narrow one rounding drowns what some forms ask."""
    forms = [rules()["forms"].get(form, {}) for form in name.split("/")[1:]]
    return all(dtype in form.get("dtypes", [dtype]) for form in forms)


def counted(dtype: str) -> list[str]:
    """The models that false alarms are counted on in a dtype: those that sound engines serve rightly in it."""
    chosen = rules()["alarms"]
    left = chosen["served-wrongly"].get(dtype, ())
    return [name for name in chosen["models"] if judged_in(name, dtype) and name not in left]


def standing_for(names: Iterable[str]) -> list[str]:
    """The small models that prove these variants: one for all that shrink alike, and its forms.

    A name with a form (`deepseek-v3/saved`) stands for itself, a variant without latent attention
    has no small model. Raises `UnknownVariantError` when nothing is left.
    """
    asked = list(names)
    formed = [case(name).name for name in asked if "/" in name]
    chosen: dict[str, Mapping[str, Any]] = {}
    for variant in (variants.variant(name) for name in asked if "/" not in name):
        if provable(variant) and (config := shrunk(variant)) not in chosen.values():
            chosen[variant.name] = config
    if not chosen and not formed:
        raise _without_model(asked)
    forms = [(name, form) for form, rule in rules()["forms"].items() for name in rule["of"]]
    usual = [f"{name}/{form}" for name, form in forms if name in chosen]
    return list(dict.fromkeys([*chosen, *usual, *formed]))


def converted(names: Iterable[str]) -> list[str]:
    """The small models that prove the conversion of these variants, and the forms of it that differ.

    A name with a form stands for itself. Raises `UnknownVariantError` as `standing_for`.
    """
    chosen = [name for name in standing_for(names) if "index_topk" not in case(name).config]
    asked = [name for name in names if "/" in name]
    plain = [name for name in chosen if "/" not in name]
    rules_ = rules()["forms"].items()
    forms = [
        f"{name}/{form}"
        for name in plain
        for form, rule in rules_
        if name in rule.get("converted", ())
    ]
    return list(dict.fromkeys([*plain, *forms, *asked]))


def on_gpu(names: Iterable[str], kind: str) -> list[str]:
    """The small models that prove these variants in an engine whose kernels want heads and groups of some numbers.

    `kind` is a table of `gpu` in small.toml; what has none goes by vLLM's. Each model comes in every dtype in
    which the table has checkpoints written. A name with a form stands for itself. Raises
    `UnknownVariantError` as `standing_for`.
    """
    asked = list(names)
    formed = [name for name in asked if "/" in name]
    chosen = [name for name in standing_for(asked) if "/" not in name]
    table = _gpu(kind)
    fitting = [
        f"{name}/{table.get(name, table['form'])}{written}"
        for name in chosen
        for written in _written(table)
    ]
    return list(dict.fromkeys([*fitting, *formed]))


def with_heads(names: Iterable[str], kind: str) -> list[str]:
    """These models in as many heads as the engine's kernels want, without those whose sizes no kernel takes.

    `kind` is as in `on_gpu`.
    """
    table = _gpu(kind)
    return [f"{name}/{table['form']}{_written(table)[0]}" for name in names if _fits(name)]


def _fits(name: str) -> bool:
    """Whether kernels of a GPU take the sizes of a model's forms."""
    return all(_form(form, name).get("gpu", True) for form in name.split("/")[1:])


def _gpu(kind: str) -> Mapping[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] = rules()["gpu"]
    return tables.get(kind, tables["vllm"])


def _written(table: Mapping[str, Any]) -> list[str]:
    """The ends of names of models whose checkpoints are written in the dtypes that a table of `gpu` names."""
    return ["" if dtype == WRITTEN else f"/{dtype}" for dtype in table.get("written", [WRITTEN])]


def adversarial(names: Iterable[str]) -> list[str]:
    """The forms in which these variants are tried for what published models do not show.

    Raises `UnknownVariantError` where there is none of them.
    """
    named = [case(name).variant for name in names]
    forms = rules()["forms"].items()
    found = [
        f"{name}/{form}"
        for name in dict.fromkeys(named)
        for form, rule in forms
        if name in rule.get("adversarial", ())
    ]
    if not found:
        known = sorted({name for _, rule in forms for name in rule.get("adversarial", ())})
        raise UnknownVariantError(
            f"There is no adversarial model of {', '.join(named)}.",
            why=f"small.toml has some of {', '.join(known)}",
            next=f"name one of them: --variant {known[0]}",
        )
    return found


def _without_model(asked: Iterable[str]) -> UnknownVariantError:
    near = next(name for name in variants.names() if provable(variants.variant(name)))
    return UnknownVariantError(
        f"There is no small model of {', '.join(asked)}.",
        why="the conformance suite makes models with latent attention only.",
        next=f"prove the wheel with one that has it: --variant {near}",
    )


def provable(variant: Variant) -> bool:
    """Whether the suite can make a small model of the variant."""
    return variant.attention == "mla" and variant.architecture in rules()["model-types"]


def shrunk(variant: Variant) -> dict[str, Any]:
    """A variant's config.json with small sizes: unquantised, float32, no extra prediction layers.

    Raises `UnknownVariantError` for a variant without a small model.
    """
    if not provable(variant):
        raise _without_model([variant.name])
    sizes = rules()["sizes"]
    config = whole(variant) | {"torch_dtype": WRITTEN}
    config |= {key: value for key, value in sizes.items() if not isinstance(value, Mapping)}
    config |= sizes["query-compression"] if variant.q_lora_rank is not None else {}
    config |= sizes["groups"] if (variant.n_group or 1) > 1 else {}
    config |= sizes["indexer"] if variant.index_topk is not None else {}
    stretched = config["rope_scaling"]
    return config | {"rope_scaling": stretched and {**stretched, **sizes["yarn"]}}


def whole(variant: Variant) -> dict[str, Any]:
    """A variant's config.json in its own sizes, without quantisation and prediction layers."""
    rope = {key: value for key, value in asdict(variant.rope).items() if key != "theta"}
    return plain(variant.facts) | {
        **rules()["constants"],
        "architectures": [variant.architecture],
        "model_type": rules()["model-types"][variant.architecture],
        "torch_dtype": "bfloat16",
        "rope_theta": variant.rope.theta,
        "rope_scaling": None if variant.rope.type == "default" else rope,
    }


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a model that its config.json states as they are; of those that are null, only the rank."""
    dropped = {"architecture", "num_nextn_predict_layers"}
    kept = {k: v for k, v in facts.items() if "." not in k and k not in dropped}
    return {k: v for k, v in kept.items() if v is not None or k == "q_lora_rank"}


def prompts(seed: int | None = None) -> dict[str, list[int]]:
    """Token ids of each prompt: random, the same always for a seed, below the small vocabulary."""
    chosen, sizes = rules()["prompts"], rules()["sizes"]
    dice = random.Random(chosen["seed"] if seed is None else seed)
    return {
        name: [dice.randrange(2, sizes["vocab_size"]) for _ in range(length)]
        for name, length in chosen["tokens"].items()
    }


def late() -> dict[str, Any]:
    """The prompt that is continued for many more steps, and how many."""
    return dict(rules()["prompts"]["late"])


def steps() -> int:
    """How many tokens are generated after each prompt."""
    count: int = rules()["prompts"]["steps"]
    return count
