"""`dspatch patch list` and `show`: what the patches are, and what becomes of them."""

from __future__ import annotations

from typing import Any

import click

from dspatch import options
from dspatch.commands import words
from dspatch.commands.groups import patch
from dspatch.console import Console


@patch.command("list")
@options.job
def patch_list(as_json: bool, **given: Any) -> None:
    """List the patches of an engine; with --rev, what becomes of each on that revision.

    \b
    dspatch patch list --engine vllm
    dspatch patch list --engine vllm --rev v0.32.0
    """
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    if given["rev"]:
        show.planned(stage.compute(words.request(given), console)[1], console)
    else:
        show.patches(stage.load_series(given["engine"] or "vllm"), console)


@patch.command("show")
@click.argument("name")
@options.job
def patch_show(name: str, as_json: bool, **given: Any) -> None:
    """Show one patch: why it exists, when it goes; with --rev, its hunks on that revision.

    \b
    dspatch patch show cpu-mla --rev v0.27.1
    """
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    series = stage.load_series(given["engine"] or "vllm")
    found = series.patch(name)
    tree = stage.compute(words.request(given), console)[1] if given["rev"] else None
    show.patch(found, series, tree, console)
