"""Measurements of MLA decode as tables and as a plot: the share of what the card allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.mla_bench import AGAIN, OURS

HEADS = (
    "heads", "batch", "tokens", "kernel", "us", "GB/s", "TFLOP/s", "of limit", "A/A", "plan us",
)  # fmt: skip
# How tables and plot call, and the plot colours, what a row calls so; ours has a colour that nobody else has.
_LOOKS = {
    "ours": ("ours", "#d62728"), "ours, portable": ("our portable kernel", "#ff9896"),
    "ours bf16": ("ours, bf16", "#ff9896"), "flashmla": ("FlashMLA", "#1f77b4"),
    "fa3": ("FlashAttention 3", "#2ca02c"), "flashinfer-0.7.4": ("FlashInfer 0.7.4", "#9467bd"),
    "triton-0.25.1": ("vLLM 0.25.1, Triton", "#8c564b"),
    "sglang-0.5.23": ("SGLang 0.5.23, Triton", "#e6ab02"),
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """The results in a file that `run` wrote; SystemExit says what it is otherwise."""
    try:
        results = json.loads(path.read_text())
        for row in results["rows"]:
            line(row, results, peers([row]))
    except FileNotFoundError:
        raise SystemExit(f"{path} does not exist; `run FOLDER -o {path}` writes it") from None
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise SystemExit(
            f"{path} is not what `run` writes: {type(error).__name__} {error}"
        ) from None
    if not results["rows"]:
        raise SystemExit(f"{path} has no rows: its run ended before the first shape")
    return dict(results)


def peers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """All that was measured beside ours, in the order in which it first appears."""
    names = (name for row in rows for name in row["us"])
    return [name for name in dict.fromkeys(names) if name not in (OURS, AGAIN)]


def limit_us(row: dict[str, Any], machine: dict[str, Any]) -> float:
    """The least time that a shape can take by the ceilings of the process that measured it."""
    memory = row["bytes"] / machine["copy_gbps"] / 1e3
    return float(max(memory, row["flops"] / machine["matmul_tflops"] / 1e6))


def line(row: dict[str, Any], machine: dict[str, Any], names: Sequence[str]) -> str:
    """A row as one line of a table; a peer without a time has a dash, what is wrong stands last."""
    limit, ours = limit_us(row, machine), row["us"][OURS]
    spread = abs(row["us"][AGAIN] - ours) / ours
    times = [row["us"].get(name) for name in names]
    cells = [f"{time:.1f} ({ours / time:.2f})" if time else "—" for time in times]
    rates = f"{row['bytes'] / ours / 1e3:.0f} | {row['flops'] / ours / 1e6:.0f}"
    shape = f"{row['heads']} | {row['batch']} | {row['tokens']} | {row['kernel']}"
    shares = f"{100 * limit / ours:.0f} % | {100 * spread:.1f} % | {row['plan_us']:.1f}"
    notes = [_notes(row)] if _notes(row) else []
    return "| " + " | ".join([shape, f"{ours:.1f}", rates, shares, *cells, *notes]) + " |"


def _notes(row: dict[str, Any]) -> str:
    wrong = {name: said for name, said in row["wrong"].items() if said}
    notes = {**wrong, **row["failed"]}
    return str(notes).strip("{}") if notes else ""


def _look(name: str) -> tuple[str, str | None]:
    return _LOOKS.get(name, (name, None))


def table(results: dict[str, Any]) -> str:
    """All rows of a run as a table."""
    names = peers(results["rows"])
    noted = [""] if any(map(_notes, results["rows"])) else []
    heads = [*HEADS, *(f"{_look(name)[0]} us (ours / it)" for name in names), *noted]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(line(row, results, names) for row in results["rows"])])


def plot(all_results: Sequence[dict[str, Any]], path: Path) -> None:
    """The fraction of the limit over the shapes, one panel a head count."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    rows = [(row, results) for results in all_results for row in results["rows"]]
    heads = sorted({row["heads"] for row, _ in rows})
    figure, panels = plt.subplots(len(heads), 1, figsize=(10, 3.4 * len(heads)), squeeze=False)
    for panel, count in zip(panels[:, 0], heads, strict=True):
        _panel(panel, [(row, machine) for row, machine in rows if row["heads"] == count], count)
    named: dict[str, Any] = {}
    for panel in panels[:, 0]:
        lines, labels = panel.get_legend_handles_labels()
        named.update(zip(labels, lines, strict=True))
    figure.legend(named.values(), named.keys(), ncols=4, fontsize=9, loc="upper center")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.6 / figure.get_figheight()))
    figure.savefig(path, metadata={"Date": None})


def _panel(panel: Any, rows: Sequence[tuple[dict[str, Any], dict[str, Any]]], heads: int) -> None:
    for name in [OURS, *peers([row for row, _ in rows])]:
        shares = [
            100 * limit_us(row, machine) / row["us"][name] if name in row["us"] else None
            for row, machine in rows
        ]
        ours = name == OURS
        style = {"linewidth": 2.4 if ours else 1.2, "zorder": 3 if ours else 2}
        label, colour = _look(name)
        panel.plot(shares, marker="o", markersize=4, label=label, color=colour, **style)
    labels = [f"{row['batch']}×{row['tokens'] // 1024}k" for row, _ in rows]
    panel.set_xticks(range(len(rows)), labels)
    kernels = ", ".join(dict.fromkeys(row["kernel"] for row, _ in rows))
    panel.set_title(f"{heads} heads; ours: {kernels}", fontsize=10, loc="left")
    panel.set_ylabel("% of the limit")
    panel.set_ylim(0, 100)
    panel.grid(alpha=0.3)
