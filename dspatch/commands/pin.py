"""`dspatch pin`: releases known by hash."""

from __future__ import annotations

from typing import Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.commands.groups import pin
from dspatch.console import Console


@pin.command("add")
@options.engine
@options.rev
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(options.TARGETS), help="Repeatable."
)
@click.option(
    "--accept", multiple=True, metavar="PATH=REASON", help="Accept a difference of a base wheel."
)
@options.as_json
def pin_add(
    engine: str | None,
    rev: str | None,
    targets: tuple[Any, ...],
    accept: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the pin of a release: find its files, fetch and check them, note their hashes.

    \b
    dspatch pin add --engine vllm --rev v0.33.0
    """
    from dspatch.stages import pinning, show

    console = Console(as_json=as_json)
    show.pin_added(pinning.add(*words.named(engine, rev), targets, accept, console), console)


@pin.command("list")
@options.engine
@options.as_json
def pin_list(engine: str | None, as_json: bool) -> None:
    """List the pins.

    \b
    dspatch pin list --engine vllm
    """
    from dspatch.stages import pinning, show

    show.pins(pinning.listed(engine), Console(as_json=as_json))


@pin.command("show")
@options.engine
@options.rev
@options.as_json
def pin_show(engine: str | None, rev: str | None, as_json: bool) -> None:
    """Show one pin: sources, base wheels, what they need, which differences are accepted.

    \b
    dspatch pin show --engine vllm --rev v0.27.1
    """
    from dspatch import pins
    from dspatch.stages import show

    show.pin(pins.load(*words.named(engine, rev)), Console(as_json=as_json))
