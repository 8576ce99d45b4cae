"""A template of the series as a module of this process: rendered, and run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from dspatch.render import Context, render_file

TEMPLATES = Path(__file__).parents[2] / "templates" / "vllm"


def rendered(template: str, name: str, **traits: object) -> ModuleType:
    """The module that a template becomes, imported under a name until somebody takes it away."""
    source = render_file(TEMPLATES, f"{template}.py.j2", Context(traits=traits, variants=[]))  # type: ignore[arg-type]
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, f"{template}.py", "exec"), module.__dict__)
    return module
