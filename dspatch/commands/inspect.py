"""`dspatch patch list`, `show`, `why` and `range-diff`: what the patches are and what becomes of them."""

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
    from dspatch.series import layered
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    if given["rev"]:
        show.planned(stage.compute(words.request(given), console)[1], console)
    else:
        show.patches(layered(given["engine"] or "vllm"), console)


@patch.command("show")
@click.argument("name")
@options.job
def patch_show(name: str, as_json: bool, **given: Any) -> None:
    """Show one patch: why it exists, when it goes; with --rev, its hunks on that revision.

    \b
    dspatch patch show cpu-mla --rev v0.27.1
    """
    from dspatch.series import layered
    from dspatch.stages import apply as stage
    from dspatch.stages import show

    console = Console(as_json=as_json)
    series = layered(given["engine"] or "vllm")
    found = series.patch(name)
    tree = None
    if given["rev"]:
        tree = stage.compute(words.request(given), console, patches=series, guarded=False)[1]
    show.patch(found, series, tree, console)


@patch.command("why")
@click.argument("place", metavar="FILE[:LINE]")
@options.job
@options.sources
def patch_why(place: str, as_json: bool, **given: Any) -> None:
    """Show which patch wrote a line, and why; without LINE, where every line comes from.

    In the work tree of the job applied last, with the edits made there; with --rev, in a computed
    tree.

    \b
    dspatch patch why vllm/platforms/cpu.py:120
    dspatch patch why vllm/platforms/cpu.py --rev v0.32.0
    """
    from dspatch.stages import inspect, show_inspect

    console = Console(as_json=as_json)
    where = words.request(given) if given["rev"] else words.job(given)
    show_inspect.explained(inspect.explain(place, where, console), console)


@patch.command("range-diff")
@click.argument("first", metavar="REV")
@click.argument("second", metavar="REV")
@options.engine
@options.target
@options.variant
@options.as_json
def patch_range_diff(first: str, second: str, as_json: bool, **given: Any) -> None:
    """Show how the patches differ between two revisions of an engine.

    \b
    dspatch patch range-diff v0.27.1 v0.32.0
    """
    from dspatch.stages import inspect, show_inspect

    console = Console(as_json=as_json)
    request = words.request({**given, "rev": first})
    show_inspect.compared(inspect.compare(request, second, console), console)
