"""A template of the series as a module of this process: rendered, and run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from dspatch.outputformat import OutputFormat
from dspatch.render import Context, render_file

TEMPLATES = Path(__file__).parents[2] / "templates" / "vllm"


def rendered(
    template: str, name: str, *, format: OutputFormat | None = None, **traits: object
) -> ModuleType:
    """The module that a template becomes, imported under a name until somebody takes it away."""
    context = Context(traits=traits, variants=[], format=format)  # type: ignore[arg-type]
    source = render_file(TEMPLATES, f"{template}.py.j2", context)
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, f"{template}.py", "exec"), module.__dict__)
    return module
