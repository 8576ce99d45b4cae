"""Wheels, deltas and installations as plain lines and as the objects that --json prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspatch.console import Console
from dspatch.stages.show import built, relative, wheel_object

if TYPE_CHECKING:
    from dspatch.stages.delta import Thin


def thin(done: Thin, console: Console) -> None:
    """The wheel and its delta, and how the latter is used."""
    delta = done.delta
    if console.as_json:
        console.result(
            {
                **wheel_object(done.built),
                "delta": {**delta.as_dict(), "path": delta.path},
                "dockerfile": done.dockerfile,
            }
        )
        return
    built(done.built, console)
    console.say(relative(delta.path))
    what = f"{delta.changed} files changed, {delta.added} added, {delta.removed} removed"
    console.say(f"  {delta.size / 1e3:.1f} kB, sha256 {delta.sha256}")
    console.say(f"  {what}; apply it with the Python that has {done.built.base.filename}:")
    console.say(f"  python {relative(delta.path)} [--check | --undo]")
    if done.dockerfile is not None:
        console.say(f"{relative(done.dockerfile)}: a layer on upstream's image")
