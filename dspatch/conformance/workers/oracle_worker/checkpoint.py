"""Write a small checkpoint: config.json and model.safetensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .weights import BIAS, tensors

STORED = "stored"  # the folder of a quantised checkpoint's own files, in that of the weights it stands for


def make(config: dict[str, Any], seed: int, form: str, target: Path, stored: str = "") -> None:
    """Write the checkpoint into the new folder `target`; `stored` names how it is quantised, if it is.

    `form` says who wrote config.json: `published` keeps DeepSeek's own keys, `transformers` lets
    the transformers config class write it (which drops `topk_method` and `scoring_func` of V3).
    """
    written = config if form == "published" else rewritten(config)
    _draw(config, seed, written, stored, target)
    _write(target / "config.json", written)
    # What the second oracle reads: the same facts under one spelling, whoever wrote config.json.
    _write(target / "oracle.json", config)


def remake(recipe: Mapping[str, Any], target: Path) -> None:
    """Draw the checkpoint of a recipe again, quantised where it was, into the new folder `target`.

    Raises `RuntimeError` where these versions of numpy and safetensors give other bytes.
    """
    written, stored = json.loads(recipe["files"]["config.json"]), recipe.get("stored", "")
    weights = _draw(recipe["config"], recipe["seed"], written, stored, target)
    if (found := hashlib.sha256(weights.read_bytes()).hexdigest()) != recipe["sha256"]:
        raise RuntimeError(
            f"numpy {np.__version__} draws other weights than those of the golden results:"
            f" sha256 {found}, not {recipe['sha256']}"
        )
    for name, text in recipe["files"].items():
        (target / name).write_text(text, encoding="utf-8")


def _draw(
    config: dict[str, Any], seed: int, written: dict[str, Any], stored: str, target: Path
) -> Path:
    """Write the weights into the new folder `target`, and what they are `stored` as; returns their file."""
    import torch
    from safetensors.torch import save_file

    target.mkdir(parents=True)
    drawn = {name: torch.from_numpy(value) for name, value in tensors(config, seed).items()}
    weights = {name: _as_written(name, value, config) for name, value in drawn.items()}
    if stored:
        weights = _quantised(weights, written, stored, target / STORED)
    path = target / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    return path


def _as_written(name: str, value: Any, config: dict[str, Any]) -> Any:
    """A tensor in the dtype that config.json says; a router's bias in float32, as it is published."""
    import torch

    return value if name.endswith(BIAS) else value.to(getattr(torch, config["torch_dtype"]))


def _quantised(
    weights: dict[str, Any], config: dict[str, Any], form: str, target: Path
) -> dict[str, Any]:
    """Write the quantised files into the new folder `target`; returns the weights that they stand for."""
    from safetensors.torch import save_file

    from .quantised import SAID, quantised

    stored, meant = quantised(weights, form)
    target.mkdir()
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    _write(target / "config.json", {**config, "quantization_config": SAID[form]})
    return meant


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def rewritten(config: dict[str, Any]) -> dict[str, Any]:
    """The config as transformers writes it when it saves the model."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[config["model_type"]]
    known = {key: value for key, value in config.items() if key in _keys(kind)}
    own: dict[str, Any] = kind.from_dict(known).to_dict()
    return {**own, "architectures": config["architectures"], "dtype": config["torch_dtype"]}


def _keys(kind: type) -> set[str]:
    # Other keys would survive as extra attributes and be written out again.
    from transformers import PreTrainedConfig

    fields = {f.name for f in dataclasses.fields(kind)} - {
        f.name for f in dataclasses.fields(PreTrainedConfig)
    }
    return fields | {
        "rope_scaling",
        "rope_theta",
        "bos_token_id",
        "eos_token_id",
        "tie_word_embeddings",
    }
