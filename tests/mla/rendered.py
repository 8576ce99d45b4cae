"""The kernels of MLA decode as a package on disk, rendered as the series renders them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dspatch import variants
from dspatch.facts import Variant
from dspatch.render import Context, render_file

TEMPLATES = Path(__file__).parents[2] / "templates" / "vllm"
FAMILY = ("deepseek-v2-lite", "deepseek-v2", "deepseek-v3")


def write(package: Path, models: Sequence[Variant] = ()) -> None:
    """Render every module into the folder `package`, for some models or for the published ones."""
    models = models or [variants.variant(name) for name in FAMILY]
    package.mkdir(parents=True, exist_ok=True)
    for template in sorted((TEMPLATES / "mla" / "decode").glob("*.py.j2")):
        name = template.name.removesuffix(".j2")
        source = render_file(
            TEMPLATES,
            f"mla/decode/{template.name}",
            Context(traits={}, variants=models),  # type: ignore[arg-type]
        )
        (package / name).write_bytes(source)
