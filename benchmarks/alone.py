"""A single file of a package, loaded without the package: what it imports of it is stood in for."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any


def stand_in(name: str, **content: Any) -> None:
    """Let a dotted name be imported, with this content and nothing else."""
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def load(path: Path, name: str) -> Any:
    """The module of a file, under a dotted name whose packages need not exist."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
