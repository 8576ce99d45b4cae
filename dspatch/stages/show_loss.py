"""What quantised checkpoints lose, as tables for the terminal and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspatch.console import Console
from dspatch.markdown import table
from dspatch.stages import show

if TYPE_CHECKING:
    from dspatch.conformance.loss import Lost
    from dspatch.stages.prove_loss import Done

LOSS = ("CHECKPOINT", "PROMPTS", "TOKENS", "KL MEAN", "KL P99", "KL MAX", "TOP-1")
SIZES = ("CHECKPOINT", "STORED", "MB", "OF BEFORE", "BITS A WEIGHT")
MEANING = (
    "KL in nats, of the distribution before from that after, at each position of a prompt; TOP-1: at how many"
    " both find the same token the likeliest."
)


def told(done: Done, console: Console) -> None:
    """Sizes and losses, and where they are written."""
    if console.as_json:
        console.result({"engine": done.name, **done.lost.as_dict(), "files": list(done.files)})
        return
    console.table(SIZES, sizes(done.lost))
    console.say("")
    console.table(LOSS, rows(done.lost))
    console.say(f"{MEANING} {done.name}, float32.")
    for path in done.files:
        console.say(show.relative(path))


def rows(lost: Lost) -> list[tuple[str, ...]]:
    """A row for each checkpoint and set of prompts."""
    return [
        (
            one.checkpoint, one.prompts, str(one.tokens), f"{one.kl_mean:.2g}", f"{one.kl_p99:.2g}",
            f"{one.kl_max:.2g}", f"{one.top1:.1%}",
        )
        for one in lost.rows
    ]  # fmt: skip


def sizes(lost: Lost) -> list[tuple[str, ...]]:
    """A row for each checkpoint, the one before first."""
    return [
        (
            one.checkpoint,
            one.stored,
            f"{one.bytes / 1e6:.1f}",
            f"{one.share:.0%}",
            f"{one.bits:.2f}",
        )
        for one in lost.sizes
    ]


def markdown(lost: Lost, name: str) -> str:
    """The same as a page."""
    parts = [f"# What quantisation loses against {lost.before}", f"{MEANING} {name}, float32."]
    for headers, found in ((SIZES, sizes(lost)), (LOSS, rows(lost))):
        parts.append("\n".join(table(headers, found)))
    return "\n\n".join(parts) + "\n"
