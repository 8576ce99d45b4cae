"""What a person sees: tables and progress on a terminal, plain lines when piped, one object with --json."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dspatch.fetch import Progress


@dataclass(frozen=True, kw_only=True)
class Console:
    """Where output goes; `as_json` keeps stdout for one JSON object, and notes for nobody."""

    as_json: bool = False

    @property
    def lively(self) -> bool:
        """Whether progress is worth showing: stderr is a terminal and nobody asked for JSON."""
        return sys.stderr.isatty() and not self.as_json

    def note(self, text: str) -> None:
        """A line about what is going on; it goes to stderr, so that stdout holds results only."""
        if not self.as_json:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """A line of the result."""
        if not self.as_json:
            click.echo(text)

    def result(self, value: Any) -> None:
        """The whole result, printed with --json only."""
        if self.as_json:
            click.echo(json_of(value))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table with aligned columns; a column's last cell is never cut."""
        if self.as_json or not rows:
            return
        widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
        widths[-1] = 0
        for number, row in enumerate([headers, *rows]):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            click.echo(click.style(line.rstrip(), bold=number == 0))

    @property
    def columns(self) -> int | None:
        """How wide the terminal is; `None` where the output is no terminal's."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    @contextmanager
    def progress(self, what: str) -> Iterator[Progress]:
        """A callback for a download's progress: a bar on a terminal, otherwise silence."""
        if not self.lively:
            yield lambda done, total: None
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=RichConsole(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """A spinner for work whose length nobody knows, and a callback that says what it is at now.

        Silence when piped.
        """
        if not self.lively:
            yield lambda step: None
            return
        from rich.console import Console as RichConsole

        with RichConsole(stderr=True).status(what) as status:
            yield lambda step: status.update(f"{what}: {step}")


def json_of(value: Any) -> str:
    """A result as JSON; what is not finite as text, for which JSON has no number."""
    return json.dumps(
        _finite(value),
        indent=2,
        sort_keys=True,
        allow_nan=False,
        default=lambda v: _finite(_plain(v)),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
