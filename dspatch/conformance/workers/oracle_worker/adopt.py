"""A checkpoint of the user's own: what is wrong with its tensors, and the same in one file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .dequantise import UnreadableError, meant
from .weights import shapes

LAYER = re.compile(r"model\.layers\.(\d+)\.")


def inspect(source: Path, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of tensors that are missing, extra, of another shape, or hold NaN or infinity.

    A quantised projection that cannot be read is `unreadable`.
    """
    try:
        return _inspect(source, config)
    except UnreadableError as error:
        return {"unreadable": [str(error)]}


def _inspect(source: Path, config: Mapping[str, Any]) -> dict[str, list[str]]:
    expected = dict(shapes(config))
    found: dict[str, list[str]] = {"missing": [], "extra": [], "misshapen": [], "not finite": []}
    present = set()
    for name, value in _read(source, config):
        present.add(name)
        if name not in expected:
            found["extra"].append(name)
        elif tuple(value.shape) != expected[name]:
            want, have = (" × ".join(map(str, s)) for s in (expected[name], value.shape))
            found["misshapen"].append(f"{name} ({have}, not {want})")
        elif not bool(value.isfinite().all()):
            found["not finite"].append(name)
    found["missing"] = sorted(expected.keys() - present)
    return found


def adopt(source: Path, config: Mapping[str, Any], target: Path) -> None:
    """Write the checkpoint into the new folder `target` as this package's own are: one file.

    Its tensors keep their dtypes, by which some engines' conversions go; quantised ones are in float32.
    """
    from safetensors.torch import save_file

    target.mkdir(parents=True)
    whole = {name: value.contiguous() for name, value in _read(source, config)}
    save_file(whole, target / "model.safetensors", metadata={"format": "pt"})
    own = json.loads((source / "config.json").read_text())
    own.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(own, indent=2) + "\n")
    (target / "oracle.json").write_text(json.dumps(dict(config), indent=2, sort_keys=True) + "\n")


def _read(source: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor but rotary tables and extra prediction layers, which an engine may leave out.

    Of a quantised checkpoint the weights that its numbers stand for.
    """
    said = json.loads((source / "config.json").read_text()).get("quantization_config")
    found = _stored(source, config)
    for name, value in meant(found, said) if said else found:
        yield name, value if value.is_floating_point() else value.to(torch.float32)


def _stored(source: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                layer = LAYER.match(name)
                extra = layer is not None and int(layer[1]) >= config["num_hidden_layers"]
                if not extra and not name.endswith("rotary_emb.inv_freq"):
                    yield name, file.get_tensor(name)
