"""Templates, traits and variant facts in; the text of files and edits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspatch.errors import TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment

    from dspatch.outputformat import OutputFormat
    from dspatch.traits import Traits
    from dspatch.variants import Variant


@dataclass(frozen=True, kw_only=True)
class Context:
    """All that a template may ask: what the checkout has, which models the job serves, in which format."""

    traits: Traits
    variants: Sequence[Variant]
    format: OutputFormat | None = None

    def names(self) -> dict[str, Any]:
        """The names a template sees."""
        known = {"traits": _Attributes(self.traits), "variants": list(self.variants)}
        return known if self.format is None else {**known, "format": self.format}


class _Attributes:
    """`traits.name` in a template; a trait without a value is undefined, and StrictUndefined says so."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._mapping = mapping

    def __getattr__(self, name: str) -> Any:
        try:
            return self._mapping[name]
        except KeyError:
            raise AttributeError(name) from None


@lru_cache(maxsize=4)
def environment(folder: Path) -> Environment:
    """The Jinja environment of a template folder: strict, with delimiters that no Python or C++ uses."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render_file(folder: Path, template: str, context: Context) -> bytes:
    """Render one template file. Raises `TemplateError` with file, line and what was expected."""
    import jinja2

    try:
        text = environment(folder).get_template(template).render(context.names())
    except jinja2.TemplateNotFound as error:
        raise TemplateError(
            f"template {error.name} does not exist below {folder}.",
            next="mend the `template` of the patch that names it",
        ) from None
    except jinja2.TemplateError as error:
        raise _explained(str(folder / template), error) from None
    return text.encode()


def render_text(folder: Path, where: str, text: str, context: Context) -> str:
    """Render the text of an edit; `where` names it in errors."""
    if not any(mark in text for mark in ("${", "<%", "<#")):
        return text
    import jinja2

    try:
        return environment(folder).from_string(text).render(context.names())
    except jinja2.TemplateError as error:
        raise _explained(where, error) from None


def _explained(where: str, error: Any) -> TemplateError:
    line = getattr(error, "lineno", None) or _line_in_template(error)
    at = f"{where}, line {line}" if line else where
    return TemplateError(
        f"{at}: {error.message}",
        why="a template may ask for `traits` and `variants`, and nothing that they do not have",
        next="mend the template, or add the trait to traits.toml",
    )


def _line_in_template(error: BaseException) -> int | None:
    """Jinja rewrites the traceback so that its innermost template frame has the template's line."""
    line = None
    frame = error.__traceback__
    while frame is not None:
        if "jinja2" not in frame.tb_frame.f_code.co_filename and frame.tb_frame.f_code.co_name in (
            "top-level template code",
            "template",
        ):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
