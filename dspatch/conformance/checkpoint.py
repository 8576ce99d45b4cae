"""Small checkpoints on disk, made by the oracle's environment and cached by what they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspatch import files, paths
from dspatch.conformance.small import Case

# Raised by hand when the worker draws other weights for the same config and seed.
GENERATION = 2
STORED_GENERATION = 3  # the same, of those that are quantised
GIVEN_GENERATION = 3  # the same, of the user's own


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder with `config.json` and `model.safetensors`; `key` identifies its bytes."""

    case: Case
    key: str

    @property
    def path(self) -> Path:
        """Where it lies in the cache."""
        return paths.cache() / "checkpoints" / f"{self.case.variant}-{self.key}"

    @property
    def weights(self) -> Path:
        """The file of the tensors."""
        return self.path / "model.safetensors"

    @property
    def given(self) -> Path:
        """The folder that an engine is given: of a quantised checkpoint, that of its own files."""
        return self.path / "stored" if self.case.stored else self.path

    @property
    def stored(self) -> Path | None:
        """The file of a quantised checkpoint's own tensors; the weights that they stand for are `weights`."""
        return self.given / "model.safetensors" if self.case.stored else None

    @property
    def complete(self) -> bool:
        """Whether it is there; the folder appears whole."""
        return self.path.is_dir()

    @property
    def recipe(self) -> Path:
        """Where the recipe lies that another machine draws the same bytes by, if one was taken along."""
        return self.path.with_name(f"{self.path.name}.json")

    def as_recipe(self) -> dict[str, Any]:
        """The recipe of a checkpoint that is there: what it is drawn from, and what must come out."""
        small = ("config.json", "oracle.json")
        return {
            "config": dict(self.case.config),
            "seed": self.case.seed,
            "stored": self.case.stored,
            "files": {name: (self.path / name).read_text(encoding="utf-8") for name in small},
            "sha256": files.sha256(self.weights),
        }

    def remake(self) -> dict[str, Any]:
        """What a worker is asked to draw it again by its recipe."""
        return {"kind": "remake", "recipe": str(self.recipe), "target": str(self.path)}

    def task(self) -> dict[str, Any]:
        """What the oracle's worker is asked to make it."""
        if self.case.source is not None:
            source, config = str(self.case.source), dict(self.case.config)
            return {"kind": "adopt", "source": source, "config": config, "target": str(self.path)}
        return {
            "kind": "make",
            "config": dict(self.case.config),
            "seed": self.case.seed,
            "form": self.case.written_by,
            "stored": self.case.stored,
            "target": str(self.path),
        }


def of(case: Case, *, written_with: str) -> Checkpoint:
    """The checkpoint of a case; `written_with` names the environment that writes its config."""
    identity = [
        GENERATION,
        dict(case.config),
        case.seed,
        case.written_by,
        written_with,
        *([*case.sources, GIVEN_GENERATION] if case.sources else []),
        *([case.stored, STORED_GENERATION] if case.stored else []),
    ]
    return Checkpoint(case=case, key=digest(identity))


def digest(identity: list[Any] | Mapping[str, Any]) -> str:
    """A short hash of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
