"""The templates of DeepSeek V3 for releases without it: which weights it loads, which it leaves."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from dspatch import variants
from dspatch.render import Context, render_file

TEMPLATES = Path(__file__).parents[2] / "templates" / "vllm"
LAYERS = 61


def rendered(template: str) -> ast.Module:
    """A template as the series renders it."""
    context = Context(traits={}, variants=[variants.variant("deepseek-v3")])  # type: ignore[arg-type]
    return ast.parse(render_file(TEMPLATES, template, context))


def is_mtp_weight(name: str) -> bool:
    """The rendered function itself, taken out of its module, which needs torch and vLLM."""
    found: dict[str, Any] = {"re": re}
    module = rendered("models/deepseek_v3.py.j2")
    own = [
        node
        for node in module.body
        if (isinstance(node, ast.FunctionDef) and node.name == "is_mtp_weight")
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAYER")
    ]
    exec(compile(ast.Module(body=own, type_ignores=[]), "deepseek_v3", "exec"), found)
    return bool(found["is_mtp_weight"](name, LAYERS))


def test_the_main_model_and_mtp_share_no_layer() -> None:
    layers = [f"model.layers.{number}.mlp.gate.weight" for number in range(LAYERS + 2)]
    assert [is_mtp_weight(name) for name in layers] == [False] * LAYERS + [True] * 2


def test_what_is_in_no_layer_is_the_main_models() -> None:
    names = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    assert not any(is_mtp_weight(name) for name in names)
    assert is_mtp_weight("model.layers.61.shared_head.head.weight")


def test_templates_are_python_and_name_no_release() -> None:
    for template in (
        "models/deepseek_v3.py.j2",
        "models/deepseek_v3_gate.py.j2",
        "models/deepseek_config.py.j2",
        "moe/cpu_experts.py.j2",
    ):
        assert ast.get_docstring(rendered(template))
        assert not re.search(r"\b0\.\d+\.\d+", (TEMPLATES / template).read_text())
