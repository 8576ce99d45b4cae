"""A measurement as one HTML page that needs nothing else: tables, and charts of bars or of points in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dspatch.console import json_of
from dspatch.files import write_atomically

if TYPE_CHECKING:
    from jinja2 import Template

WIDTH, LEFT, RIGHT, TALL = 340.0, 8.0, 8.0, 150.0
ROW = 34.0  # of a bar with its label above it


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A labelled bar from zero to `value`, with a whisker from `low` to `high` where they are given."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    kind: Literal["mark", "soft", "fail"] = "mark"


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of one unit, on a scale from zero to the largest."""

    title: str
    note: str
    bars: tuple[Bar, ...]

    @property
    def height(self) -> float:
        """Of the whole chart."""
        return ROW * len(self.bars) + 4

    def at(self, value: float) -> float:
        """Where a value stands across."""
        most = max((max(b.value, b.high or 0.0) for b in self.bars), default=0.0) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * max(value, 0.0) / most


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points in time, (seconds, value), and a straight line through them, where there is one."""

    title: str
    note: str
    unit: str
    points: tuple[tuple[float, float], ...]
    fit: tuple[tuple[float, float], tuple[float, float]] | None = None

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        """Where a point stands, across and down."""
        (x0, x1), (y0, y1) = _ends([x for x, _ in self.points]), self.range
        x = LEFT + (WIDTH - LEFT - RIGHT) * (point[0] - x0) / (x1 - x0)
        y = TALL - 22 - (TALL - 40) * (point[1] - y0) / (y1 - y0)
        return x, y

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most value that the chart shows."""
        fitted = [y for _, y in self.fit] if self.fit else []
        return _ends([*(y for _, y in self.points), *fitted])

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last moment."""
        return _ends([x for x, _ in self.points])


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with a heading."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page says: a verdict, what it rests on, tables and charts."""

    title: str
    verdict: str
    ok: bool
    about: str
    tables: tuple[Table, ...] = ()
    bars: tuple[Bars, ...] = ()
    lines: tuple[Line, ...] = ()


def write(files: Sequence[Path], result: Any, page: Page) -> None:
    """Write a measurement's two files: the object that --json prints, and the page."""
    json_file, html_file = files
    write_atomically(json_file, f"{json_of(result)}\n".encode())
    write_atomically(html_file, as_html(page).encode())


def as_html(page: Page) -> str:
    """The page; every text in it is escaped."""
    return _template().render(page=page, width=WIDTH, tall=TALL, row=ROW, left=LEFT)


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("bench.html.j2")


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - 0.5, low + 0.5)
